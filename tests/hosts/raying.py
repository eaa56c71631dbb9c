"""Real Ray on the hosts of a bed: where it is installed, how it is started, which of its processes is which."""

import contextlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.hosts.bed import Bed

PYTHON = os.environ.get("ALLRANKS_RAY_PYTHON", "")
LACKING = "" if PYTHON else "Ray is not installed: `make test-ray` installs it and names it in ALLRANKS_RAY_PYTHON"
SMALL = ("--num-cpus=1", "--object-store-memory=80000000")  # a machine of two cores has room for four of them
DRIVER = Path(__file__).parent / "programs" / "ray_driver.py"
SHARE = "-8"  # about the weight of eight processes (sched(7), autogroup)
KINDS = {  # the process of each kind, by a word of its command line, and on which host: the first, the last, or either
    "head": ("/gcs_server", 0),
    "worker": ("runner_ray.py", -1),
    "raylet": ("raylet/raylet", -1),
    "driver": ("/runner.py", 0),
}


def pid_of(bed: Bed, kind: str) -> int:
    """The machine pid of a process of a kind; the eldest of those that are alike."""
    word, host = KINDS[kind]
    return min(p.pid for p in bed.hosts[host].pids() if p.state != "Z" and word in p.command)


def left(bed: Bed) -> list[str]:
    """Processes of Ray, and of what started it, that live on the hosts."""
    words = ("/ray/", "ray::", "runner_ray.py", "/runner.py")
    living = [p for host in bed.hosts for p in host.pids() if p.state != "Z"]
    return [f"{p.pid} {p.command[:120]}" for p in living if any(word in p.command for word in words)]


def links_left(bed: Bed) -> list[str]:
    """Names that were given to Ray's directories on the hosts."""
    return [str(path) for host in bed.hosts for path in Path(f"/proc/{host.init}/root/tmp").glob("ray-*")]


@contextlib.contextmanager
def share_of_its_processes(bed: Bed) -> Iterator[None]:
    """Give each session of Ray the processor share of its eight processes, not that of one.

    A raylet gives up where its agent needs more than 15 s to start, and here it has to on a busy machine of two cores.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            for host in bed.hosts:
                for process in host.pids():
                    if "ray" in process.command:
                        with contextlib.suppress(OSError):
                            Path(f"/proc/{process.pid}/autogroup").write_text(SHARE)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def has_default() -> bool:
    """Whether `ray[default]` is there, which takes jobs."""
    found = Path(PYTHON).parent.parent.glob("lib/python*/site-packages/aiohttp_cors")
    return any(found) or importlib.util.find_spec("aiohttp_cors") is not None
