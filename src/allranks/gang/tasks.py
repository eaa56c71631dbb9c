"""Tasks whose failure is heard at once: asyncio tells of an exception only when the task is asked (IO)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from allranks import early

Result = TypeVar("Result")


def start_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task of the running loop; its exception goes to the loop's exception handler as soon as it ends."""
    task = asyncio.get_running_loop().create_task(coroutine)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        context = {"message": f"exception in {task.get_name()}", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)


def handle_errors(loop: asyncio.AbstractEventLoop, handle: Callable[[Exception], None]) -> None:
    """Call `handle` with each error that a callback or a started task of the loop ends with."""

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        handle(error if isinstance(error, Exception) else RuntimeError(context["message"]))

    loop.set_exception_handler(on_error)


class _Interrupt:
    """Ctrl-C around an event loop: one that comes while the loop is made or closed waits; half a loop cannot be closed.

    While the loop runs, the first cancels its main task, and each later one raises KeyboardInterrupt. asyncio.run does
    that too (Python 3.11 and later), but not before its first step.
    """

    def __init__(self) -> None:
        self.count = 0
        self.waits = False
        self.task: asyncio.Task[Any] | None = None
        self._taken = False

    def __call__(self, *_: object) -> None:
        self.count += 1
        if self.task is None or self.task.done():
            self.waits = True
            return
        if self.count > 1:
            raise KeyboardInterrupt
        self.task.cancel()
        self.task.get_loop().call_soon_threadsafe(lambda: None)  # the loop may wait for a file

    def take(self) -> None:
        """Handle SIGINT from here on where Python does."""
        self._taken = early.give(self)

    def give_back(self) -> None:
        """Leave SIGINT to Python again."""
        self.task = None  # the loop goes with it: CPython prints what a signal raises in `__del__`, and goes on
        if self._taken:
            early.take_back()


def run_loop(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run what `main` makes in an event loop of its own; a Ctrl-C ends it and is raised when the loop is closed.

    A mask of signals does not hold a Ctrl-C back: any other thread of this process takes it.
    """
    interrupt = _Interrupt()

    async def interruptible() -> Result:
        interrupt.task = asyncio.current_task()
        if interrupt.waits:
            raise asyncio.CancelledError
        return await main()

    interrupt.take()
    try:
        result = asyncio.run(interruptible())
    except asyncio.CancelledError:
        if interrupt.count:
            raise KeyboardInterrupt from None
        raise
    finally:
        interrupt.give_back()
    if interrupt.waits:
        raise KeyboardInterrupt
    return result


async def run_with_callbacks(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main`; an exception in any callback or started task of the loop ends it, and is raised here."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(main)
    failures: list[Exception] = []

    def end(error: Exception) -> None:
        failures.append(error)
        task.cancel()

    before = loop.get_exception_handler()
    handle_errors(loop, end)
    try:
        return await task
    except asyncio.CancelledError:
        if failures:
            raise failures[0] from None
        raise
    finally:
        loop.set_exception_handler(before)
