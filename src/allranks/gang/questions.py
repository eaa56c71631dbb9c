"""Answers of a controller to questions of other terminals, of a run that goes on (IO).

A question is asked of the agents, and their answers go back as they are: whoever asks reads them. Nothing of it is a
fact of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Sequence

from allranks.protocol.codec import encode
from allranks.protocol.messages import StacksMessage
from allranks.protocol.orders import StacksOrder
from allranks.runs.questions import (
    ANSWER_SECONDS,
    QUESTIONS,
    QUESTIONS_SOCKET,
    REQUEST_SECONDS,
    NodeStacks,
    StacksAnswer,
    StacksQuestion,
    packed,
    peer_of,
    read_packed,
    socket_name,
)
from allranks.text import error_line

from .conducting import RoleSession, status_of_roles
from .controller import Controller
from .states import State

AGAIN = 1.0  # seconds until the name is tried again, which the controller before this one may still have


class Questions:
    """Answers for the sessions of a run: one for each of its roles."""

    def __init__(self, sessions: Sequence[RoleSession]) -> None:
        self._sessions = sessions
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[StacksMessage]] = {}
        for session in sessions:
            session.controller.answered = self._answered

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
        if peer_of(writer.get_extra_info("socket")).uid == os.getuid():
            try:
                question = QUESTIONS.read(await asyncio.wait_for(read_packed(reader), REQUEST_SECONDS))
                answer = encode(await self.answer(question))
            except Exception as error:
                answer = encode(StacksAnswer(failed=error_line(error)))
            with contextlib.suppress(OSError):
                writer.write(packed(answer))
                await writer.drain()
        writer.close()

    async def answer(self, question: StacksQuestion) -> StacksAnswer:
        """Ask the agents for stacks, all at once."""
        asked = []
        for session in self._sessions:
            controller = session.controller
            if question.roles and session.context.role.name not in question.roles:
                continue
            if controller.roster.state is not State.RUNNING:
                continue
            for node, running in controller.roster.running_ranks().items():
                ranks = tuple(rank for rank in running if not question.ranks or rank in question.ranks)
                if ranks:
                    asked.append(self._ask(controller, node, ranks, question))
        nodes = await asyncio.gather(*asked)
        return StacksAnswer(tuple(nodes), status_of_roles(self._sessions))

    async def _ask(
        self, controller: Controller, node: str, ranks: tuple[int, ...], question: StacksQuestion
    ) -> NodeStacks:
        number = next(self._numbers)
        role = controller.roster.role.name
        future = self._open[number] = asyncio.get_running_loop().create_future()
        word = "dump" if question.dump else "see"
        try:
            controller.links.send(controller.links.members[node], StacksOrder(ranks, word, number, question.native))
            message = await asyncio.wait_for(future, ANSWER_SECONDS)
        except asyncio.TimeoutError:
            return NodeStacks(node, role, error="it gave no answer in time")
        finally:
            del self._open[number]
        return NodeStacks(node, role, message.ranks, message.error)

    def _answered(self, message: StacksMessage) -> None:
        """Take a node's answer; one that comes too late is dropped."""
        future = self._open.get(message.asked)
        if future is not None and not future.done():
            future.set_result(message)
