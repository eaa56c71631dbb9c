"""Stands between a launcher of other makers and the runner, once a rank; then it becomes the runner (exec).

    accelerate launch … runner_launched.py train.py args
    deepspeed … runner_launched.py --local_rank=0 -m package.module args

The launcher alone knows which rank a process is, so this is where a rank gets files of its own
(ALLRANKS_RANK_FILES: VARIABLE=path with {rank} for 003|…), and where one is seen that the launcher has
given no rank (reported under the node's first), or a smaller gang than planned (ALLRANKS_PLANNED ranks): it would
train alone, and end with 0. And it says which process each rank is: agent/ranks.py sees how it ends.
Ships as this one file, needs the standard library alone and runs under Python 3.8 and later.
"""

import json
import os
import socket
import sys
import time
from typing import Iterable, List, Optional

# torch's names, and those that accelerate and deepspeed read under MPI
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
LOCAL_RANK = ("--local_rank=", "--local-rank=")


def main() -> None:
    """Look, report, and go on as the runner."""
    rank = number(RANKS)
    size = number(SIZES)
    planned = number(("ALLRANKS_PLANNED",)) or 1
    if rank is None:
        if planned > 1:
            report("alone", number(("ALLRANKS_FIRST_RANK",)) or 0, 1)
    else:
        if (size or 1) < planned:
            report("alone", rank, size)
        take_files(rank)
        take_cpus(number(("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")) or 0)
        report("launched", rank, size)
    become_runner()


def take_files(rank: int) -> None:
    """Give the rank files of its own. What the user has set stays, but the agent looks for the error file in ours."""
    for item in filter(None, os.environ.get("ALLRANKS_RANK_FILES", "").split("|")):
        name, _, path = item.partition("=")
        if name == "TORCHELASTIC_ERROR_FILE" or name not in os.environ:
            os.environ[name] = path.replace("{rank}", "%03d" % rank)


def take_cpus(local_rank: int) -> None:
    """Stay on the CPUs that the agent has chosen for this rank (agent/binding.py)."""
    of_ranks = os.environ.get("ALLRANKS_CPUS", "").split("|")
    os.environ["ALLRANKS_CPUS"] = of_ranks[local_rank] if local_rank < len(of_ranks) else ""
    runs = [part.partition("-") for part in os.environ["ALLRANKS_CPUS"].split(",") if part]
    cpus = {cpu for low, _, high in runs for cpu in range(int(low), int(high or low) + 1)}
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError:  # a cpuset has become another since they were chosen
            pass


def number(names: Iterable[str]) -> Optional[int]:
    """Return the first of the variables that holds a number."""
    for name in names:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return None


def report(event: str, rank: int, size: Optional[int]) -> None:
    """Send one datagram to the agent."""
    message = {"event": event, "rank": rank, "world_size": size or 1, "pid": os.getpid(), "t": time.time()}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto(json.dumps(message).encode(), os.environ.get("ALLRANKS_REPORT_SOCKET", ""))
    except OSError:
        pass


def become_runner() -> None:
    """Start the same command line with the runner in this file's place.

    deepspeed and old launchers put --local_rank before the program's name; it belongs behind it."""
    with open("/proc/self/cmdline", "rb") as file:
        command_line = [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
    flags = command_line[1 : len(command_line) - len(sys.argv)]
    runner = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "runner.py")
    os.execv(sys.executable, [sys.executable, *flags, runner, *in_order(sys.argv[1:])])


def in_order(words: List[str]) -> List[str]:
    """Put the program first, then what the launcher adds, then the program's own arguments."""
    added = 0
    while added < len(words) and words[added].startswith(LOCAL_RANK):
        added += 1
    program = words[added:]
    name = 2 if program[:1] == ["-m"] else 1
    return [*program[:name], *words[:added], *program[name:]]


if __name__ == "__main__":
    main()
