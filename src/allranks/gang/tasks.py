"""Tasks whose failure is heard at once: asyncio tells of an exception only when somebody asks the task (IO)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

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


def run_loop(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run what `main` makes in an event loop of its own.

    A Ctrl-C that comes while the loop is made waits until it runs: half a loop cannot be closed.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    async def interruptible() -> Result:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return await main()

    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        return asyncio.run(interruptible())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


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
