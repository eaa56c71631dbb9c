"""Several small gangs at the same time, one round after the other: `allranks test --suite staged` (IO)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

from .session import Session


async def run_round(sessions: Sequence[Session]) -> list[dict[str, Any]]:
    """Runs disjoint gangs side by side; gives their result documents. Ctrl-C and SIGTERM end all of them."""
    loop = asyncio.get_running_loop()
    for number, reason in ((signal.SIGINT, "ctrl-c"), (signal.SIGTERM, "sigterm"), (signal.SIGHUP, "sigterm")):
        loop.add_signal_handler(number, _interrupt, sessions, reason)
    await asyncio.gather(*(session.controller.run() for session in sessions))
    return [session.finish() for session in sessions]


def _interrupt(sessions: Sequence[Session], reason: str) -> None:
    for session in sessions:
        session.interrupt(reason)
