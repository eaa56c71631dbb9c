"""Answers of a controller to questions of other terminals, of a run that goes on (IO).

A question is asked of the agents, and their answers go back as they are: whoever asks reads them. Nothing of it is a
fact of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

from allranks.protocol.codec import encode
from allranks.protocol.frames import TRACE
from allranks.protocol.messages import ProfiledMessage, StacksMessage
from allranks.protocol.orders import MOST_PROFILES, ProfileOrder, StacksOrder
from allranks.protocol.samples import RankProfile
from allranks.runs.questions import (
    ANSWER_SECONDS,
    QUESTIONS,
    QUESTIONS_SOCKET,
    REQUEST_SECONDS,
    TRACE_SECONDS,
    NodeStacks,
    ProfileAnswer,
    ProfiledRank,
    ProfileQuestion,
    StacksAnswer,
    StacksQuestion,
    is_own,
    packed,
    read_packed,
    socket_name,
)
from allranks.text import error_line, group

from .conducting import status_of_roles
from .controller import Controller
from .states import State

AGAIN = 1.0  # seconds until the name is tried again, which the controller before this one may still have
STEPLESS_SECONDS = 5.0  # for which ranks are profiled that show no step
LOOK = 0.05  # seconds between two looks at the steps of a profile
SLACK = 10.0  # seconds by which a rank's own limit is later than the controller's
PATIENCE = 0.5  # seconds between two looks at whether an answer may still come
Answered = TypeVar("Answered", StacksMessage, ProfiledMessage)


class Questions:
    """Answers for the controllers of a run: one for each of its roles."""

    def __init__(self, controllers: Sequence[Controller]) -> None:
        self._controllers = controllers
        self._numbers = itertools.count(1)
        self._profiles = 0  # that there have been
        self._open: dict[int, asyncio.Future[StacksMessage | ProfiledMessage]] = {}
        for controller in controllers:
            controller.answered = self._answered

    async def serve(self, uid: str) -> None:
        """Listen until cancelled."""
        server: asyncio.Server | None = None
        while server is None:
            try:
                server = await asyncio.start_unix_server(self._accept, socket_name(uid, QUESTIONS_SOCKET))
            except OSError:
                await asyncio.sleep(AGAIN)
        try:
            await asyncio.Event().wait()
        finally:
            server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one question of this user. What fails here fails for who asks: the run goes on."""
        if is_own(writer):
            try:
                question = QUESTIONS.read(await asyncio.wait_for(read_packed(reader), REQUEST_SECONDS))
                if isinstance(question, ProfileQuestion):
                    answer = encode(await self.profile(question))
                else:
                    answer = encode(await self.answer(question))
            except Exception as error:
                answer = {"failed": error_line(error)}  # a field of every answer
            with contextlib.suppress(OSError):
                writer.write(packed(answer))
                await writer.drain()
        writer.close()

    async def answer(self, question: StacksQuestion) -> StacksAnswer:
        """Ask the agents for stacks, all at once."""
        asked = []
        for controller in self._running(question.roles):
            is_launched = controller.roster.spec.launch.launcher != "direct"  # agents alone know who has which rank
            for node, running in controller.roster.running_ranks().items():
                ranks = tuple(rank for rank in question.ranks if is_launched or rank in running)
                if ranks or not question.ranks:
                    asked.append(self._stacks(controller, node, ranks, question))
        nodes = await asyncio.gather(*asked)
        return StacksAnswer(tuple(nodes), status_of_roles(self._controllers))

    def _running(self, roles: Sequence[str]) -> list[Controller]:
        wanted = [one for one in self._controllers if not roles or one.context.role.name in roles]
        return [one for one in wanted if one.roster.state is State.RUNNING]

    async def _stacks(
        self, controller: Controller, node: str, ranks: tuple[int, ...], question: StacksQuestion
    ) -> NodeStacks:
        word = "dump" if question.dump else "see"
        order = StacksOrder(ranks, word, native=question.native)
        role = controller.roster.role.name
        message = await self._ask(controller, node, order, StacksMessage, ANSWER_SECONDS)
        if isinstance(message, str):
            return NodeStacks(node, role, error=message)
        return NodeStacks(node, role, message.ranks, message.error)

    async def _ask(
        self,
        controller: Controller,
        node: str,
        order: StacksOrder | ProfileOrder,
        kind: type[Answered],
        seconds: float,
    ) -> Answered | str:
        """Send a node an order, with the number of the question. Give its answer, or why there is none."""
        number = next(self._numbers)
        future = self._open[number] = asyncio.get_running_loop().create_future()
        deadline = time.monotonic() + seconds
        try:
            controller.links.send(controller.links.members[node], order._replace(asked=number))
            while not future.done():
                await asyncio.wait({future}, timeout=PATIENCE)
                if future.done():
                    break
                if controller.roster.state is not State.RUNNING:  # an agent answers no question from before an end
                    return "the attempt has ended"
                if time.monotonic() >= deadline:
                    return "it gave no answer in time"
        finally:
            del self._open[number]
        message = future.result()
        return message if isinstance(message, kind) else "it gave another answer"

    def _answered(self, message: StacksMessage | ProfiledMessage) -> None:
        future = self._open.get(message.asked)
        if future is not None and not future.done():
            future.set_result(message)

    # -- profiles ----------------------------------------------------------------------------------

    async def profile(self, question: ProfileQuestion) -> ProfileAnswer:
        """Profile the chosen ranks of each role, all at once."""
        profiles: list[Awaitable[list[ProfiledRank]]] = []
        for controller in self._running(question.roles):
            places = controller.roster.node_of_rank()
            chosen = [rank for rank in sorted(places) if rank in question.ranks]
            if not question.ranks and not profiles:
                chosen = sorted(places)[:1]
            if chosen:
                number = self._next_profile(controller)
                of_chosen = {rank: places[rank] for rank in chosen}
                profiles.append(self._profile(controller, number, of_chosen, question))
        ranks = await asyncio.gather(*profiles)
        return ProfileAnswer(tuple(itertools.chain.from_iterable(ranks)))

    def _next_profile(self, controller: Controller) -> int:
        folder = controller.run_dir.log_path(0, "", TRACE, 0, 0).parent
        numbers = [path.name.split("_")[1] for path in folder.glob("profile_*_rank_*")]
        last = max((int(number) for number in numbers if number.isdecimal()), default=0)
        self._profiles = max(self._profiles, last) + 1
        if self._profiles > MOST_PROFILES:
            raise ValueError(f"the run has had {MOST_PROFILES} profiles")
        return self._profiles

    async def _profile(
        self, controller: Controller, number: int, places: Mapping[int, str], question: ProfileQuestion
    ) -> list[ProfiledRank]:
        """Begin it on all nodes, wait for the steps, and end it where it has begun."""
        begun = await self._order(controller, number, places, question.limit + SLACK)
        recording = {rank: places[rank] for rank, one in begun.items() if not one.error}
        first = last = None
        ended = dict(begun)
        if recording:
            first, last = await _until_over(controller, question)
            ended.update(await self._order(controller, number, recording, None))
        ranks = []
        for rank, one in sorted(ended.items()):
            trace = ""
            if one.size:
                trace = str(controller.run_dir.log_path(0, "", TRACE, rank, number))
            described = ProfiledRank(
                rank,
                places[rank],
                first_step=first,
                last_step=last,
                trace=trace,
                role=controller.context.role.name,
                **one._asdict(),
            )
            ranks.append(described)
        return ranks

    async def _order(
        self, controller: Controller, number: int, places: Mapping[int, str], seconds: float | None
    ) -> dict[int, RankProfile]:
        """Have the nodes of these ranks begin a profile of so many seconds at most, or end it; give their answers."""

        async def of_node(node: str, ranks: tuple[int, ...]) -> dict[int, RankProfile]:
            order = ProfileOrder(ranks, seconds or 0.0, number, is_end=seconds is None)
            message = await self._ask(controller, node, order, ProfiledMessage, TRACE_SECONDS)
            if isinstance(message, str):
                return dict.fromkeys(ranks, RankProfile(error=f"of its node: {message}"))
            gone = RankProfile(error=message.error or "it does not run")
            return {rank: message.ranks.get(rank, gone) for rank in ranks}

        ranks_of = group(places, places.__getitem__)
        answers = await asyncio.gather(*(of_node(node, tuple(ranks)) for node, ranks in ranks_of.items()))
        return {rank: one for answer in answers for rank, one in answer.items()}


def _seen(controller: Controller) -> tuple[int | None, float]:
    """Give the step that the role has come to, and how many it does a second; None and 0 where that is not seen."""
    ranks = controller.observing.progress.by_rank().values()
    steps = [one.step for one in ranks if one.step is not None]
    return max(steps, default=None), max((one.rate or 0.0 for one in ranks), default=0.0)


async def _until_over(controller: Controller, question: ProfileQuestion) -> tuple[int | None, int | None]:
    """Wait for one step more than are wanted: it begins in the midst of one. Give the steps seen first and last.

    Programs that show few of their steps are waited for by their rate. The end of the attempt is an end too."""
    roster = controller.roster
    attempt = roster.attempt
    began = time.monotonic()
    first = last = _seen(controller)[0]
    while roster.state is State.RUNNING and roster.attempt == attempt:
        seconds = time.monotonic() - began
        last, rate = _seen(controller)
        if first is None:
            first = last
        if seconds >= question.limit or (last is None and seconds >= STEPLESS_SECONDS):
            break
        if first is not None and last is not None and last - first > question.steps:
            break
        if rate and seconds * rate >= question.steps + 1:
            break
        await asyncio.sleep(LOOK)
    return first, last
