"""What a training program may call: start its process group with reasons instead of a hang, report its steps, and save.

One file that needs the standard library alone, torch where a group is started, and Python 3.8 or later: where
allranks is not installed in the training image, copy it beside the script. Works under torchrun, allranks, accelerate,
DeepSpeed, srun, mpirun, and as a single process:

    group = allranks.init_process_group()
    model = Model().to(group.device)
    allranks.report_step(step, steps, loss=loss)
    if allranks.should_save(step):
        save(os.path.join(allranks.checkpoint_dir(), f"step_{step}.pt"))

All that is printed is ASCII.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import mmap
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

    Metric = bool | int | float | str | None
    Row = dict[str, Metric]  # of a metrics file

MASTER_SECONDS = 600.0
PORT = 29500  # torch's own default
TRY_EVERY = 0.5  # seconds
SAY_EVERY = 10.0  # seconds between lines that say why it is still waiting
RANGES_SHOWN = 16
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?")
SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# The strongest first; as `allranks run` reads them.
GROUP_NAMES = ("ALLRANKS_PG_TIMEOUT", "COLOSSALAI_DIST_TIMEOUT", "NCCL_TIMEOUT")
MASTER_NAMES = ("COLOSSALAI_MASTER_READY_TIMEOUT",)
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")

# The numbers that a rank shares with its agent, by their places (agent/saving.py has the same). Each has 8 bytes.
# The rank's: how often it has called, its newest two steps, the request that it waits for, and the last request that it
# has answered with True, at which step and in which call.
CALLS, LAST, BEFORE, HOLDS, ANSWERED, ANSWERED_STEP, ANSWERED_CALL = range(7)
# The agent's: the request, how far it is, and the step to save at.
REQUEST, PHASE, STEP = range(8, 11)
SHARED_NUMBERS = 12
PROPOSED, AGREED = 2, 3  # phases; before them ranks go on
HOLD_SECONDS = 10.0  # that a rank waits at a proposed step for the word that all others come to it (gang/saving.py)
HOLD_PAUSE = 0.001


class Launcher(NamedTuple):
    """The variables by which a launcher names a process; "" where it has none."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


# The first that is there counts.
LAUNCHERS = (
    Launcher("torch", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher("Open MPI", *("OMPI_COMM_WORLD_" + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    Launcher("MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


class StartError(RuntimeError):
    """The process group could not be started; the text says what was set, what was seen, and what to set."""


@dataclass(frozen=True)
class ProgramPlace:
    """Which rank this process is, and where the master is, by this launcher's variables."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    launcher: str
    notes: tuple[str, ...]

    @property
    def master(self) -> str:
        """Give the master's address and port."""
        return f"{self.address}:{self.port}"


@dataclass(frozen=True)
class Group(ProgramPlace):
    """A process group that has started. `timeout` is in seconds, None where torch's own default holds."""

    device: torch.device
    backend: str
    timeout: float | None


# ---- what the environment says


def duration(text: str) -> float | None:
    """Read seconds from `500ms`, `8s`, `10m`, `2h` or a bare number; None for anything else.

    >>> duration("10m"), duration("90"), duration("soon")
    (600.0, 90.0, None)
    """
    match = DURATION.fullmatch(text.strip().lower())
    if not match:
        return None
    return float(match[1]) * SECONDS[match[2] or ""]


def limit_of(names: tuple[str, ...], environ: Mapping[str, str]) -> tuple[float | None, str]:
    """Give the first of these variables that is set, in seconds, and its name; StartError where it is not a duration.

    >>> limit_of(GROUP_NAMES, {"NCCL_TIMEOUT": "30m", "COLOSSALAI_DIST_TIMEOUT": "3600"})
    (3600.0, 'COLOSSALAI_DIST_TIMEOUT')
    """
    for name in names:
        text = environ.get(name, "").strip()
        if text:
            seconds = duration(text)
            if not seconds:
                raise StartError(f"{name}={text}: set a duration above 0, such as 1800 or 30m")
            return seconds, name
    return None, ""


def find_place(environ: Mapping[str, str]) -> ProgramPlace:
    """Read the launcher's variables; without any this is the only process.

    >>> place = find_place({"SLURM_PROCID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8",
    ...                     "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_ID": "1234",
    ...                     "SLURM_STEP_NODELIST": "gpu[07-08]"})
    >>> place.rank, place.world_size, place.local_rank, place.local_world_size, place.address, place.port
    (5, 8, 1, 4, 'gpu07', 21234)
    """
    for launcher in LAUNCHERS:
        slurm = launcher.name == "Slurm"
        if slurm and not environ.get("SLURM_STEP_ID"):
            continue  # the batch script itself: no task of a step
        rank = _number(launcher.rank, environ)
        world_size = _number(launcher.world_size, environ)
        if world_size is None and slurm:
            world_size = _number("SLURM_NTASKS", environ)
        if rank is None and (world_size is None or launcher.name == "torch"):
            continue  # WORLD_SIZE alone is a habit of scripts, and says nothing of this process
        if rank is None or world_size is None:
            names = (launcher.rank, launcher.world_size)
            present, absent = names if world_size is None else names[::-1]
            raise StartError(
                f"{present} is set and {absent} is not: start with torchrun, srun, mpirun or allranks "
                "run, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT"
            )
        if rank >= world_size:
            variables = f"{launcher.rank}={rank} with {launcher.world_size}={world_size}"
            raise StartError(f"{variables}: ranks go from 0 to {world_size - 1}")
        return _place(launcher, rank, world_size, environ)
    return ProgramPlace(0, 1, local_rank=0, local_world_size=1, address="127.0.0.1", port=0, launcher="", notes=())


def _number(name: str, environ: Mapping[str, str]) -> int | None:
    text = environ.get(name, "").strip()
    if text and not re.fullmatch(r"[0-9]{1,9}", text):
        raise StartError(f"{name}={text}: set a whole number")
    return int(text) if text else None


def _place(launcher: Launcher, rank: int, world_size: int, environ: Mapping[str, str]) -> ProgramPlace:
    notes = []
    slurm = launcher.name == "Slurm"
    local_rank = _number(launcher.local_rank, environ)
    local_size = _tasks_here(environ) if slurm else _number(launcher.local_world_size, environ)
    address = environ.get("MASTER_ADDR", "").strip()
    port = _number("MASTER_PORT", environ)
    if port is not None and port > 65535:
        raise StartError(f"MASTER_PORT={port}: set a port from 1 to 65535")
    if slurm and not address:
        address = first_host(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "")
    if slurm and port is None:
        port = 20000 + (_number("SLURM_JOB_ID", environ) or 0) % 10000  # the same in all tasks of the job
    if not address and (world_size == 1 or local_size == world_size):
        address = "127.0.0.1"
    if not address:
        how = "mpirun -x MASTER_ADDR=HOST" if "MPI" in launcher.name else "export MASTER_ADDR=HOST on every node"
        raise StartError(f"MASTER_ADDR is not set: name the host of rank 0 ({how})")
    usual_size = _number("WORLD_SIZE", environ)
    if usual_size not in (None, world_size):
        launched = f"{launcher.name} started {world_size} ranks: {world_size} counts"
        notes.append(f"WORLD_SIZE={usual_size} is set here, but {launched}")
    if local_rank is None and local_size == world_size:
        local_rank = rank
    if local_rank is None:
        local_rank = 0
        notes.append("LOCAL_RANK is not set: 0 is taken, so each process must see a GPU of its own")
    if local_size is None:
        local_size = 1 if world_size == 1 else local_rank + 1
    return ProgramPlace(
        rank,
        world_size,
        local_rank=local_rank,
        local_world_size=local_size,
        address=address,
        port=port or PORT,
        launcher=launcher.name,
        notes=tuple(notes),
    )


def first_host(text: str) -> str:
    """Give the first host of Slurm's list.

    >>> first_host("gpu[07-08,11],login1"), first_host("a-[1,3]-b"), first_host("solo"), first_host("")
    ('gpu07', 'a-1-b', 'solo', '')
    """
    match = re.match(r"[^\[,]*(?:\[[^\]]*\][^\[,]*)*", text)
    return re.sub(r"\[(\w+)(?!\w)[^\[\]]*\]", r"\1", match[0]) if match else ""


def _tasks_here(environ: Mapping[str, str]) -> int | None:
    """Read Slurm's `4(x2),2` with the number of this node."""
    counts: list[int] = []
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or ""
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    node = _number("SLURM_NODEID", environ) or 0
    return counts[node] if node < len(counts) else None


# ---- the start


def init_process_group(
    backend: str | None = None,
    timeout: float | None = None,
    master_timeout: float | None = None,
) -> Group:
    """Call torch.distributed.init_process_group, with reasons where it would hang. Give who and where this rank is.

    `backend` is nccl (xccl) by default where this process has a GPU, else gloo. The device is set. `timeout` is that of
    collectives in seconds, by default ALLRANKS_PG_TIMEOUT, COLOSSALAI_DIST_TIMEOUT, NCCL_TIMEOUT, else torch's.
    `master_timeout` is the time for the master and all ranks to come, by default COLOSSALAI_MASTER_READY_TIMEOUT, else
    10 minutes. StartError says who did not come and why. The torch names (RANK, LOCAL_RANK, …) are set where the
    launcher has others.

    >>> import allranks                                                # doctest: +SKIP
    >>> group = allranks.init_process_group()                          # doctest: +SKIP
    rank 0 of 1 (local rank 0) on node1: master 127.0.0.1:41437, backend gloo, device cpu, timeout torch's default
    initialisation successful
    """
    import torch.distributed as dist  # late: report_step does without

    place = find_place(os.environ)
    limit: dict[str, Any] = {}
    timeout_text = "torch's default"
    source = "argument"
    if timeout is None:
        timeout, source = limit_of(GROUP_NAMES, os.environ)
    if timeout is not None:
        limit["timeout"] = datetime.timedelta(seconds=timeout)
        timeout_text = f"{timeout:g} s ({source})"
    patience = master_timeout or limit_of(MASTER_NAMES, os.environ)[0] or MASTER_SECONDS
    device, backend = choose_device(place, backend)
    if not dist.is_initialized():
        if place.world_size == 1 and place.port == 0:
            place = replace(place, port=_free_port())
        export_place(place, os.environ)
        who = f"rank {place.rank} of {place.world_size} (local rank {place.local_rank}) on {socket.gethostname()}"
        where = f"master {place.master}, backend {backend}, device {device}, timeout {timeout_text}"
        say(f"{who}: {where}")
        for note in place.notes if place.rank == 0 else ():
            say(f"note: {note}")
        store = meet(place, patience)
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size, **limit)
        say("initialisation successful")
    place = replace(place, rank=dist.get_rank(), world_size=dist.get_world_size())
    return Group(**vars(place), device=device, backend=str(dist.get_backend()), timeout=timeout)


def choose_device(place: ProgramPlace, backend: str | None) -> tuple[torch.device, str]:
    """Make the accelerator of this local rank the current one; give it and the backend that goes with it."""
    import torch  # late: report_step does without

    for kind, fitting in (("cuda", "nccl"), ("xpu", "xccl")):
        module = getattr(torch, kind, None)
        if module is None or not module.is_available():
            continue
        count = module.device_count()
        restricted = any(os.environ.get(name) for name in VISIBLE)
        if place.local_rank >= count and not (count == 1 and restricted):  # one that is this process's own
            raise StartError(
                f"local rank {place.local_rank} has no {kind} device: {count} visible here. Compare the "
                "number of processes a node with the GPUs and CUDA_VISIBLE_DEVICES"
            )
        device = torch.device(kind, 0 if count == 1 else place.local_rank)
        module.set_device(device)
        return device, backend or fitting
    return torch.device("cpu"), backend or "gloo"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def export_place(place: ProgramPlace, environ: MutableMapping[str, str]) -> None:
    """Set torch's names for what reads them later: DeepSpeed, accelerate, the script itself."""
    environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world_size))
    environ.setdefault("LOCAL_RANK", str(place.local_rank))
    environ.setdefault("LOCAL_WORLD_SIZE", str(place.local_world_size))
    environ.setdefault("MASTER_ADDR", place.address)
    environ.setdefault("MASTER_PORT", str(place.port))


def meet(place: ProgramPlace, patience: float) -> Store:
    """Give the store at the master, once all ranks are there; StartError names those that are not."""
    import torch.distributed  # late: report_step does without

    dist: Any = torch.distributed
    ends = time.monotonic() + patience
    serves = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not serves:
        wait_for_master(place.address, place.port, ends)
    elif place.world_size > 1 and not is_own(place.address):
        say(f"note: MASTER_ADDR={place.address} is not an address of this host, where rank 0 is")
    span = datetime.timedelta(seconds=max(1.0, ends - time.monotonic()))
    try:
        store = dist.TCPStore(place.address, place.port, place.world_size, serves, span, False)
    except Exception as error:
        failed = "cannot listen on" if serves else "cannot use the store at"
        raise StartError(
            f"rank {place.rank} {failed} {place.master}: {first_line(error)}. Set another MASTER_PORT, or see "
            "who holds it: ss -ltnp"
        ) from error
    if serves and place.world_size > 1:
        say(f"master {place.master} is ready for connections")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store.set_timeout(datetime.timedelta(seconds=2 * patience + 60))  # rank 0 may have begun to count later
    _gather(dist.PrefixStore(f"allranks/{attempt}", store), place, ends)
    store.set_timeout(datetime.timedelta(seconds=1800))  # as torch's own: what libraries later wait for in it
    group: Store = dist.PrefixStore(f"group/{attempt}", store)
    return group


def first_line(error: Exception) -> str:
    """Give the first line of what an error says; its type where it says nothing."""
    # As `text.error_line`, which is not imported: this file is copied beside scripts where allranks is not installed.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def is_own(address: str) -> bool:
    """Tell whether this is an address of this machine: a socket can be bound to no other."""
    with contextlib.suppress(OSError, UnicodeError):
        for family, _, _, _, where in socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as tried:
                tried.bind(where)
                return True
    return False


def until(look: Callable[[], str], ends: float, pause: float, line: Callable[[str, float], str]) -> str:
    """Look until nothing is missing any more, or the time is over; give what is missing then.

    Every ten seconds it is said, in the `line` for what is missing and for the seconds so far.
    """
    began = time.monotonic()
    spoke = began
    while True:
        reason = look()
        now = time.monotonic()
        if not reason or now >= ends:
            return reason
        if now - spoke >= SAY_EVERY:
            spoke = now
            say(line(reason, now - began))
        time.sleep(min(pause, max(0.0, ends - now)))


def wait_for_master(address: str, port: int, ends: float) -> None:
    """Wait until the master listens; the reason why not is said every ten seconds, and in the error."""
    master = f"master {address}:{port}"
    say(f"waiting for {master}")
    began = time.monotonic()

    def look() -> str:
        return try_master(address, port, min(3.0, max(0.2, ends - time.monotonic())))

    reason = until(look, ends, TRY_EVERY, lambda why, spent: f"still waiting for {master} ({spent:.0f} s): {why}")
    if reason:
        raise StartError(f"{master} was not ready within {time.monotonic() - began:.0f} s: {reason}")
    say(f"{master} is ready for connections")


def try_master(address: str, port: int, seconds: float) -> str:
    """Give "" where a process listens there, else why not and what to look at."""
    try:
        addresses = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is empty or too long
        why = getattr(error, "strerror", None) or error
        return f"the name {address} does not resolve here ({why}): set MASTER_ADDR to an address"
    reason = ""
    for family, kind, protocol, _, where in addresses:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.settimeout(seconds)
                tried.connect(where)
            return ""
        except ConnectionRefusedError:
            reason = (
                f"{where[0]} answers, but no process listens on port {port}: rank 0 has not started, or has another "
                "address or port"
            )
        except socket.timeout:  # noqa: UP041  (Python 3.8)
            reason = f"{where[0]} gives no answer on port {port}: a firewall, a wrong address, or the host is down"
        except OSError as error:
            reason = f"{where[0]} cannot be reached: {error.strerror or error}"
    return reason


def _gather(store: Store, place: ProgramPlace, ends: float) -> None:
    """Let all ranks say that they are here; rank 0 looks who is missing, and all learn it."""
    if place.world_size == 1:
        return
    store.set(f"here/{place.rank}", "1")
    if place.rank == 0:
        missing = list(range(place.world_size))

        def look() -> str:
            missing[:] = [rank for rank in missing if not _is_there(store, f"here/{rank}")]
            return spans(missing)

        until(look, ends, 0.05, lambda ranks, spent: f"waiting for {ranks} ({spent:.0f} s)")
        store.set("go", json.dumps(missing))
        time.sleep(1.0 if missing else 0.0)  # the others read it before the store goes with this process
    else:
        try:
            missing = json.loads(store.get("go").decode())
        except Exception as error:
            raise StartError(
                f"rank {place.rank} waits for the go of rank 0 at {place.master}, which did not come: "
                f"{first_line(error)}"
            ) from error
    if missing:
        raise StartError(
            f"{len(missing)} of {place.world_size} ranks did not come to {place.master} in time: {spans(missing)}. "
            "Look at their logs, and whether they have the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE"
        )


def _is_there(store: Store, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except (AttributeError, NotImplementedError):  # torch before 2.1
        try:
            store.wait([key], datetime.timedelta(seconds=0.05))
            return True
        except Exception:
            return False


def spans(ranks: list[int]) -> str:
    """Write a few ranks, or ranges of many.

    >>> spans([3]), spans([0, 1, 2, 7]), spans([])
    ('rank 3', 'ranks 0-2, 7', '')
    """
    if not ranks:
        return ""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and rank == ranges[-1][-1] + 1:
            ranges[-1].append(rank)
        else:
            ranges.append([rank])
    texts = [f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in ranges]
    if len(texts) > RANGES_SHOWN:
        texts[RANGES_SHOWN:] = ["..."]
    return f"ranks {', '.join(texts)}"


def say(text: str) -> None:
    """Print one line, in ASCII whatever the locale; do nothing where standard output is closed."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text.encode("ascii", "backslashreplace").decode("ascii") + "\n")
        sys.stdout.flush()


# ---- steps


def report_step(step: int, total: int | None = None, **metrics: Any) -> Row:
    """Note a step: a line of this rank's metrics file under `allranks run`, else a printed line on rank 0.

    `allranks status`, the live table and the report read the file. Values are numbers, texts, or tensors of one
    element. A full disk loses the line and never fails the program. Gives the row.

    >>> row = report_step(3, 100, loss=2.5, name="run")
    step 3/100 loss 2.5 name run
    >>> row["step"], row["total"], row["loss"]
    (3, 100, 2.5)
    """
    row: Row = {"step": int(step)}
    if total is not None:
        row["total"] = int(total)
    row.update((name, plain(value)) for name, value in metrics.items())
    rank = _rank()
    folder = os.environ.get("ALLRANKS_OUTPUT_DIR")
    if folder:
        _append(os.path.join(folder, f"rank_{rank:02d}_metrics.jsonl"), {**row, "t": time.time()})
    elif rank == 0:
        words = [f"step {step}" if total is None else f"step {step}/{total}"]
        for name in metrics:
            words.append(f"{name} {row[name]:.6g}" if isinstance(row[name], float) else f"{name} {row[name]}")
        say(" ".join(words))
    return row


def _rank() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for launcher in LAUNCHERS:
        text = os.environ.get(launcher.rank, "")
        if text.isdecimal():
            return int(text)
    return 0


def plain(value: Any) -> Metric:
    """Give a number or text; of a tensor or NumPy value its one element."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    try:
        number = value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):  # no tensor; more than one element
        number = None
    return number if isinstance(number, (bool, int, float, str)) else str(value)


def _append(path: str, row: Row) -> None:
    """Write a row as JSON, which has no NaN and no infinity: they become the texts nan, inf and -inf."""
    endless = {name: str(value) for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, (json.dumps({**row, **endless}) + "\n").encode())
        finally:
            os.close(file)


# ---- saving


class SaveRequests:
    """This rank's side of requests to save, in numbers that it shares with its agent.

    Without a file they are this process's alone, and no request ever comes."""

    def __init__(self, path: str) -> None:
        self._numbers: MutableSequence[int] | memoryview = [0] * SHARED_NUMBERS
        # Not under allranks, in a container without its directory, or on a full disk.
        with contextlib.suppress(OSError, ValueError):
            self._numbers = map_numbers(path)
        self._answered = self._numbers[ANSWERED]

    def call(self, step: int) -> bool:
        """Tell whether this is the step to save at."""
        numbers = self._numbers
        numbers[BEFORE] = numbers[LAST]
        numbers[LAST] = step  # before the request is read: the agent writes the request, then reads the step
        numbers[CALLS] += 1
        if numbers[REQUEST] == self._answered:
            return False
        numbers[HOLDS] = numbers[REQUEST]
        answer = self._answer(step)
        numbers[HOLDS] = 0
        return answer

    def _answer(self, step: int) -> bool:
        """Wait at a step that is proposed until it is agreed, or another one is proposed."""
        numbers = self._numbers
        ends = time.monotonic() + HOLD_SECONDS
        while True:
            phase = numbers[PHASE]  # before the step, which does not change any more once it is agreed
            if phase < PROPOSED or step < numbers[STEP]:
                return False
            if phase == AGREED:
                self._answered = numbers[REQUEST]
                numbers[ANSWERED_STEP] = step
                numbers[ANSWERED_CALL] = numbers[CALLS]
                numbers[ANSWERED] = self._answered
                return True
            if time.monotonic() >= ends:
                return False
            time.sleep(HOLD_PAUSE)


def map_numbers(path: str) -> memoryview:
    """Map the shared numbers; raise OSError or ValueError.

    A full disk raises here: a write to the mapping would end the rank.
    """

    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, 8 * SHARED_NUMBERS)
        return memoryview(mmap.mmap(file, 8 * SHARED_NUMBERS)).cast("q")
    finally:
        os.close(file)


_requests: list[SaveRequests] = []


def should_save(step: int) -> bool:
    """Tell whether this rank should save after `step`: True once a request, at the same step on all ranks.

    A request is SIGUSR1 or SIGUSR2 to `allranks run`, a scheduler's notice, and any orderly stop. Call it after each
    step, or after the same steps on all ranks. It takes a microsecond, and needs no process group. Where no step can be
    agreed within 10 s it goes on with False. False without `allranks run`.

    >>> should_save(1)
    False
    """
    if not _requests:
        path = os.environ.get("ALLRANKS_SAVE_FILE", "")
        _requests.append(SaveRequests(path))
        if path:
            _report_first_call()
    return _requests[0].call(int(step))


def _report_first_call() -> None:
    """Tell the agent that this rank can be asked to save; it is asked then, where that is wanted already."""
    word = {"event": "saves", "rank": _rank(), "pid": os.getpid(), "t": time.time()}
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(1.0)
        channel.sendto(json.dumps(word).encode(), os.environ.get("ALLRANKS_REPORT_SOCKET", ""))


class WorldChange(NamedTuple):
    """Ranks of the attempt before, and of this one."""

    before: int
    now: int


def world_changed() -> WorldChange | None:
    """Return how many ranks the attempt before had and this one has. None for the same number, or the first.

    Of use where the global batch or the learning rate goes with the number of ranks. Set by `allranks run` alone.

    >>> world_changed() is None
    True
    """
    before = _number("ALLRANKS_FORMER_WORLD_SIZE", os.environ)
    now = _number("WORLD_SIZE", os.environ)
    return None if before is None or now is None else WorldChange(before, now)


def checkpoint_dir() -> str:
    """Make the directory for this run's checkpoints, and give its path: the same in every attempt of the run.

    It is `checkpoints` in ALLRANKS_OUTPUT_DIR, or in the working directory without `allranks run`. Ranks on several
    hosts have one place, and a later run finds it again, where `--output-dir` names a shared directory. Raise OSError
    where it cannot be made.
    """
    path = os.path.join(os.environ.get("ALLRANKS_OUTPUT_DIR", ""), "checkpoints")
    os.makedirs(path, exist_ok=True)
    return os.path.abspath(path)
