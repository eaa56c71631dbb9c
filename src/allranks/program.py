"""What a training program may call: start its process group with reasons instead of a hang, and report its steps.

One file that needs the standard library alone, torch where a group is started, and Python 3.8 or later: where
allranks is not installed in the training image, copy it beside the script. Works under torchrun, allranks, accelerate,
DeepSpeed, srun, mpirun, and as a single process:

    group = allranks.init_process_group()
    model = Model().to(group.device)
    allranks.report_step(step, steps, loss=loss)

All that is printed is ASCII.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

MASTER_SECONDS = 600.0
PORT = 29500  # torch's own default
LOOK_EVERY, SAY_EVERY = 0.5, 10.0  # seconds between tries, and between lines that say why it is still waiting
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?")
SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# The strongest first; as `allranks run` reads them.
GROUP_NAMES = ("ALLRANKS_PG_TIMEOUT", "COLOSSALAI_DIST_TIMEOUT", "NCCL_TIMEOUT")
MASTER_NAMES = ("COLOSSALAI_MASTER_READY_TIMEOUT",)
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
# How each launcher tells rank, world size, local rank and local world size; the first that is there counts.
LAUNCHERS = (
    ("torch", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    ("Open MPI", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",),
     ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    ("Slurm", ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",), ()),
    ("MPI", ("PMI_RANK",), ("PMI_SIZE",), ("MPI_LOCALRANKID",), ("MPI_LOCALNRANKS",)),
)  # fmt: skip


class StartError(RuntimeError):
    """The process group could not be started; the text says what was set, what was found, and what to set."""


@dataclass(frozen=True)
class Place:
    """Which rank this process is, and where the master is; `launcher` says who told."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    launcher: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """A process group that has started. `timeout` is in seconds, None where torch's own default holds."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: Any
    backend: str
    address: str
    port: int
    timeout: float | None


# ---- what the environment says


def duration(text: str) -> float | None:
    """Seconds of `500ms`, `8s`, `10m`, `2h` or a bare number; None for anything else.

    >>> duration("10m"), duration("90"), duration("soon")
    (600.0, 90.0, None)
    """
    match = DURATION.fullmatch(text.strip().lower())
    return float(match[1]) * SECONDS[match[2] or ""] if match else None


def limit_of(names: tuple[str, ...], environ: Mapping[str, str]) -> tuple[float | None, str]:
    """The first of these variables that is set, in seconds, with its name; StartError where it is no duration.

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


def find_place(environ: Mapping[str, str]) -> Place:
    """Reads the launcher's variables; without any this is the only process.

    >>> place = find_place({"SLURM_PROCID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8",
    ...                     "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_ID": "1234",
    ...                     "SLURM_STEP_NODELIST": "gpu[07-08]"})
    >>> place.rank, place.world_size, place.local_rank, place.local_world_size, place.address, place.port
    (5, 8, 1, 4, 'gpu07', 21234)
    """
    for launcher, *names in LAUNCHERS:
        if launcher == "Slurm" and not environ.get("SLURM_STEP_ID"):
            continue  # the batch script itself: no task of a step
        rank, world, local, here = (_number(names[at], environ) for at in range(4))
        if rank is None and world is None:
            continue
        if rank is None and launcher == "torch":
            continue  # WORLD_SIZE alone is a habit of scripts, and says nothing of this process
        if rank is None or world is None:
            found, absent = (names[0], names[1]) if rank is not None else (names[1], names[0])
            raise StartError(f"{found[0]} is set and {absent[0]} is not: start with torchrun, srun, mpirun or allranks "
                             "run, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT")  # fmt: skip
        if not 0 <= rank < world:
            told = f"{names[0][0]}={rank} with {names[1][0]}={world}"
            raise StartError(f"{told}: ranks go from 0 to {world - 1}")
        if launcher == "Slurm" and here is None:
            here = _tasks_here(environ)
        return _with_master(launcher, rank, world, local, here, environ)
    return Place(0, 1, 0, 1, "127.0.0.1", 0, "")


def _number(names: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    for name in names:
        text = environ.get(name, "").strip()
        if text:
            if not re.fullmatch(r"[0-9]{1,9}", text):
                raise StartError(f"{name}={text}: set a whole number")
            return int(text)
    return None


def _with_master(
    launcher: str, rank: int, world: int, local: int | None, here: int | None, environ: Mapping[str, str]
) -> Place:
    """Completes a place by the master's address: as set, of Slurm's node list, or this machine."""
    address, notes = environ.get("MASTER_ADDR", "").strip(), []
    port = _number(("MASTER_PORT",), environ)
    if not address and launcher == "Slurm":
        address = first_host(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "")
    if not address and (world == 1 or here == world):
        address = "127.0.0.1"
    if not address:
        how = "mpirun -x MASTER_ADDR=HOST" if "MPI" in launcher else "export MASTER_ADDR=HOST on every node"
        raise StartError(f"MASTER_ADDR is not set: name the host of rank 0 ({how})")
    if port is None and launcher == "Slurm":
        port = 20000 + int((_number(("SLURM_JOB_ID",), environ) or 0) % 10000)  # the same in all tasks of the job
    told = _number(("WORLD_SIZE",), environ)
    if told is not None and told != world:
        notes.append(f"WORLD_SIZE={told} is set here, but {launcher} started {world} ranks: {world} counts")
    local = rank if local is None and here == world else local
    if local is None:
        local, notes = 0, [*notes, "LOCAL_RANK is not set: 0 is taken, so each process must see a GPU of its own"]
    here = here if here is not None else (world if world == 1 else max(1, local + 1))
    return Place(rank, world, local, here, address, PORT if port is None else port, launcher, tuple(notes))


def first_host(text: str) -> str:
    """The first host of Slurm's list.

    >>> first_host("gpu[07-08,11],login1"), first_host("a-[1,3]-b"), first_host("solo"), first_host("")
    ('gpu07', 'a-1-b', 'solo', '')
    """
    match = re.match(r"[^\[,]*(?:\[[^\]]*\][^\[,]*)*", text)
    return re.sub(r"\[(\w+)(?!\w)[^\[\]]*\]", r"\1", match[0]) if match else ""


def _tasks_here(environ: Mapping[str, str]) -> int | None:
    """Slurm's `4(x2),2` with the number of this node."""
    counts: list[int] = []
    for part in (environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        counts += [int(match[1])] * int(match[2] or 1) if match else []
    node = _number(("SLURM_NODEID",), environ) or 0
    return counts[node] if node < len(counts) else None


# ---- the start


def init_process_group(
    backend: str | None = None, timeout: float | None = None, master_timeout: float | None = None,
    quiet: bool = False,
) -> Group:  # fmt: skip
    """torch.distributed.init_process_group, with reasons where it would hang; returns who and where this rank is.

    `backend` None: nccl (xccl) where this process has a GPU, else gloo; the device is set. `timeout`: of collectives,
    in seconds; None: ALLRANKS_PG_TIMEOUT, COLOSSALAI_DIST_TIMEOUT, NCCL_TIMEOUT, else torch's. `master_timeout`: for
    the master and all ranks to come; None: COLOSSALAI_MASTER_READY_TIMEOUT, else 10 minutes. StartError says who did
    not come and why. The torch names (RANK, LOCAL_RANK, …) are set where the launcher has others.

    >>> import allranks                                                # doctest: +SKIP
    >>> group = allranks.init_process_group()                          # doctest: +SKIP
    rank 0 of 1 (local rank 0) on node1: master 127.0.0.1:41437, backend gloo, device cpu, timeout torch's default
    initialisation successful
    """
    import torch.distributed as dist

    place = find_place(os.environ)
    seconds, named = (timeout, "argument") if timeout is not None else limit_of(GROUP_NAMES, os.environ)
    patience = master_timeout or limit_of(MASTER_NAMES, os.environ)[0] or MASTER_SECONDS
    device, backend = choose_device(place, backend)
    if dist.is_initialized():
        return _group(place, device, seconds)
    if place.world_size == 1 and place.port == 0:
        place = _alone(place)
    _export(place, os.environ)
    said = "torch's default" if seconds is None else f"{seconds:g} s ({named})"
    say(quiet, f"rank {place.rank} of {place.world_size} (local rank {place.local_rank}) on {socket.gethostname()}: "
               f"master {place.address}:{place.port}, backend {backend}, device {device}, timeout {said}")  # fmt: skip
    for note in place.notes if place.rank == 0 else ():
        say(quiet, f"note: {note}")
    store = meet(place, patience, quiet)
    limit: dict[str, Any] = {} if seconds is None else {"timeout": datetime.timedelta(seconds=seconds)}
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size, **limit)
    say(quiet, "initialisation successful")
    return _group(place, device, seconds)


def choose_device(place: Place, backend: str | None) -> tuple[Any, str]:
    """The accelerator of this local rank, made the current one, and the backend that goes with it."""
    import torch

    for kind, own in (("cuda", "nccl"), ("xpu", "xccl")):
        module = getattr(torch, kind, None)
        if module is None or not module.is_available():
            continue
        count, restricted = module.device_count(), any(os.environ.get(name) for name in VISIBLE)
        if place.local_rank >= count and not (count == 1 and restricted):  # one that is this process's own
            raise StartError(f"local rank {place.local_rank} has no {kind} device: {count} visible here; compare the "
                             "number of processes a node with the GPUs and CUDA_VISIBLE_DEVICES")  # fmt: skip
        device = torch.device(kind, 0 if count == 1 else place.local_rank)
        module.set_device(device)
        return device, backend or own
    return torch.device("cpu"), backend or "gloo"


def _alone(place: Place) -> Place:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return Place(**{**vars(place), "port": free.getsockname()[1]})


def _export(place: Place, environ: MutableMapping[str, str]) -> None:
    """torch's names for what reads them later: DeepSpeed, accelerate, the script itself."""
    environ["RANK"], environ["WORLD_SIZE"] = str(place.rank), str(place.world_size)
    for name, value in (("LOCAL_RANK", place.local_rank), ("LOCAL_WORLD_SIZE", place.local_world_size),
                        ("MASTER_ADDR", place.address), ("MASTER_PORT", place.port)):  # fmt: skip
        environ.setdefault(name, str(value))


def _group(place: Place, device: Any, seconds: float | None) -> Group:
    import torch.distributed as dist

    return Group(dist.get_rank(), dist.get_world_size(), place.local_rank, place.local_world_size, device,
                 str(dist.get_backend()), place.address, place.port, seconds)  # fmt: skip


def meet(place: Place, patience: float, quiet: bool) -> Any:
    """The store at the master, once all ranks are there; StartError names those that are not."""
    import torch.distributed as module

    dist: Any = module
    master, ends = f"{place.address}:{place.port}", time.monotonic() + patience
    serves = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not serves:
        wait_for_master(place.address, place.port, ends, quiet)
    elif place.world_size > 1 and not is_own(place.address):
        say(quiet, f"note: MASTER_ADDR={place.address} is no address of this host, where rank 0 is")
    span = datetime.timedelta(seconds=max(1.0, ends - time.monotonic()))
    try:
        store = dist.TCPStore(place.address, place.port, place.world_size, serves, span, False)
    except Exception as error:
        what = "can't listen on" if serves else "can't use the store at"
        raise StartError(f"rank {place.rank} {what} {master}: {first_line(error)}; set another MASTER_PORT, or see "
                         "who holds it: ss -ltnp") from error  # fmt: skip
    if serves and place.world_size > 1:
        say(quiet, f"master {master} is ready for connections")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store.set_timeout(datetime.timedelta(seconds=2 * patience + 60))  # rank 0 may have begun to count later
    _gather(dist.PrefixStore(f"allranks/{attempt}", store), place, ends, quiet)
    store.set_timeout(datetime.timedelta(seconds=1800))  # as torch's own: what libraries later wait for in it
    return dist.PrefixStore(f"group/{attempt}", store)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def is_own(address: str) -> bool:
    """A socket can be bound to this machine's own addresses alone."""
    try:
        for family, _, _, _, where in socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as tried:
                tried.bind(where)
                return True
    except OSError:
        pass
    return False


def wait_for_master(address: str, port: int, ends: float, quiet: bool) -> None:
    """Until the master listens; the reason why not is said every ten seconds, and in the error."""
    master = f"master {address}:{port}"
    say(quiet, f"waiting for {master}")
    began = told = time.monotonic()
    while True:
        reason = try_master(address, port, min(3.0, max(0.2, ends - time.monotonic())))
        now = time.monotonic()
        if not reason:
            say(quiet, f"{master} is ready for connections")
            return
        if now >= ends:
            raise StartError(f"{master} was not ready within {now - began:.0f} s: {reason}")
        if now - told >= SAY_EVERY:
            told = now
            say(quiet, f"still waiting for {master} ({now - began:.0f} s): {reason}")
        time.sleep(min(LOOK_EVERY, max(0.0, ends - now)))


def try_master(address: str, port: int, seconds: float) -> str:
    """ "" where somebody listens there, else why not and what to look at."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"the name {address} does not resolve here ({error.strerror}): set MASTER_ADDR to an address"
    reason = ""
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.settimeout(seconds)
                tried.connect(where)
            return ""
        except ConnectionRefusedError:
            reason = f"{where[0]} answers, but nobody listens on port {port}: rank 0 has not started, or has another "
            reason += "address or port"
        except socket.timeout:  # noqa: UP041  (Python 3.8)
            reason = f"{where[0]} gives no answer on port {port}: a firewall, a wrong address, or the host is down"
        except OSError as error:
            reason = f"{where[0]} can't be reached: {error.strerror or error}"
    return reason


def _gather(store: Any, place: Place, ends: float, quiet: bool) -> None:
    """All say that they are here; rank 0 looks who is missing, and tells all."""
    if place.world_size == 1:
        return
    store.set(f"here/{place.rank}", "1")
    if place.rank == 0:
        missing = _missing(store, place.world_size, ends, quiet)
        store.set("go", json.dumps(missing))
        time.sleep(1.0 if missing else 0.0)  # the others read it before the store goes with this process
    else:
        try:
            missing = json.loads(store.get("go").decode())
        except Exception as error:
            raise StartError(f"rank {place.rank} waits for the go of rank 0 at {place.address}:{place.port}, which did "
                             f"not come: {first_line(error)}") from error  # fmt: skip
    if missing:
        raise StartError(f"{len(missing)} of {place.world_size} ranks did not come to {place.address}:{place.port} in "
                         f"time: {spans(missing)}; look at their logs, and whether they have the same MASTER_ADDR, "
                         "MASTER_PORT and WORLD_SIZE")  # fmt: skip


def _missing(store: Any, world: int, ends: float, quiet: bool) -> list[int]:
    """Waits until all are here, or the time is up."""
    began = told = time.monotonic()
    missing = list(range(world))
    while True:
        missing = [rank for rank in missing if not _is_there(store, f"here/{rank}")]
        now = time.monotonic()
        if not missing or now >= ends:
            return missing
        if now - told >= SAY_EVERY:
            told = now
            say(quiet, f"waiting for {spans(missing)} ({now - began:.0f} s)")
        time.sleep(0.05)


def _is_there(store: Any, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except (AttributeError, NotImplementedError):  # torch before 2.1
        try:
            store.wait([key], datetime.timedelta(seconds=0.05))
            return True
        except Exception:
            return False


def spans(ranks: list[int]) -> str:
    """rank 3 - or ranks.

    >>> spans([3]), spans([0, 1, 2, 7])
    ('rank 3', 'ranks 0-2, 7')
    """
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    texts = [f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    shown = ", ".join(texts[:16]) + (", ..." if len(texts) > 16 else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}"


def say(quiet: bool, text: str) -> None:
    """One line, in ASCII whatever the locale; a closed standard output harms nobody."""
    if quiet:
        return
    try:
        sys.stdout.write(text.encode("ascii", "backslashreplace").decode("ascii") + "\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        pass


# ---- steps


def report_step(step: int, total: int | None = None, **metrics: Any) -> dict[str, Any]:
    """Notes a step: a line of this rank's metrics file under `allranks run`, else a printed line on rank 0.

    `allranks status`, the live table and the report read the file. Values are numbers, texts, or tensors of one
    element. A full disk loses the line and never fails the program. Gives the row.

    >>> row = report_step(3, 100, loss=2.5, name="run")
    step 3/100 loss 2.5 name run
    >>> row["step"], row["total"], row["loss"]
    (3, 100, 2.5)
    """
    row: dict[str, Any] = {"step": int(step)}
    if total is not None:
        row["total"] = int(total)
    row.update((name, plain(value)) for name, value in metrics.items())
    rank = _rank()
    folder = os.environ.get("ALLRANKS_OUTPUT_DIR")
    if folder:
        _append(os.path.join(folder, f"rank_{rank:02d}_metrics.jsonl"), {**row, "t": time.time()})
    elif rank == 0:
        of = "" if total is None else f"/{total}"
        told = "".join(f" {name} {_short(row[name])}" for name in metrics)
        say(False, f"step {step}{of}{told}")
    return row


def _rank() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for _, names, *_rest in LAUNCHERS:
        text = os.environ.get(names[0], "")
        if text.isdigit():
            return int(text)
    return 0


def plain(value: Any) -> Any:
    """A number or text; of a tensor or NumPy value its one element."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    item = getattr(value, "item", None)
    try:
        return item() if callable(item) else str(value)
    except (ValueError, RuntimeError):  # more than one element
        return str(value)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _append(path: str, row: dict[str, Any]) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, (json.dumps(row) + "\n").encode())
        finally:
            os.close(file)
    except OSError:
        pass
