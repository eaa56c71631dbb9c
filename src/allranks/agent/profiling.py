"""Profiles of ranks: begun and ended in the ranks by their runners (runner_profile.py), and made ready to travel."""

from __future__ import annotations

import gzip
import os
import shutil
from typing import Dict

from allranks.protocol.codec import decode_parts
from allranks.protocol.messages import ProfiledMessage
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import ProfileOrder
from allranks.protocol.samples import RankProfile

from .asking import Asking
from .files import open_left, remove_file
from .processes import Process

BEGIN_SECONDS = 25.0  # runner_profile.py gives itself 20
WRITING_SECONDS = 90.0  # for a trace to be made: 10 µs an event, in all threads of a rank
MOST_TRACE = 1 << 30  # bytes of a trace before it is packed; a thousand operators have 250 KB


def profile(ranks: Dict[int, Process], node_dir: str, order: ProfileOrder) -> ProfiledMessage:
    """Begin to profile ranks, or end it and pack their traces. Whoever has no trace has an error."""
    if not order.is_end:
        answers = Asking(ranks, node_dir, "profile %g" % order.seconds, "its runner", BEGIN_SECONDS).answers()
    else:
        answers = Asking(ranks, node_dir, "profiled", "its runner", WRITING_SECONDS).answers()
    profiles = {rank: decode_parts(RankProfile, answer) for rank, answer in answers.items()}
    if order.is_end:
        profiles = {rank: _packed(rank, one, NodeFiles(node_dir), order.number) for rank, one in profiles.items()}
    return ProfiledMessage(profiles, asked=order.asked)


def _packed(rank: int, one: RankProfile, files: NodeFiles, number: int) -> RankProfile:
    """Pack a rank's trace into the file that travels. A rank that has ended may have left one."""
    plain = files.plain_trace(rank)
    packed = files.trace(rank, number)
    try:
        size = os.stat(plain).st_size
        if size > MOST_TRACE:
            return one._replace(error="its trace has %d MB, and %d travel" % (size >> 20, MOST_TRACE >> 20))
        remove_file(packed)
        made = os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with (
            open(made, "wb") as file,
            gzip.GzipFile("", "wb", 1, file) as target,
            open(open_left(plain), "rb") as source,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        return one._replace(error="", size=os.stat(packed).st_size)
    except FileNotFoundError:
        return one._replace(error=one.error or "it has written no trace")
    except OSError as error:
        return one._replace(error="its trace could not be packed: %s" % error)
    finally:
        remove_file(plain)
