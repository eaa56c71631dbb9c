"""The faults of `make chaos`, one row each: where it strikes, what must follow, and within how many seconds. Pure.

The bounds were written down before the first round. They hold on a quiet machine, from the fault to the end of the
command. On a busy one they are multiplied by `load_factor`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from allranks.exitcodes import CTRL_C, DONE, HANG, NODE_FAILED, PROGRAM_FAILED, TERMINATED

# What every round is started with, in seconds. Limits of the start grow with the load: at a load of 28 on two cores
# starts of tasks took over 10 s, and imports of torch over 60 s.
LEASE = 10.0
GRACE = 1.0
FENCE = 2.0  # after lease and grace, before the place of a lost node is given away
STOP_GRACE = 5.0
HANG_TIMEOUT = 12.0
INIT_TIMEOUT = 60.0
CONNECT_TIMEOUT = 10.0
NODE_WAIT = 15.0
RETRIES = 3

# Parts of the bounds, in seconds.
START = 15.0  # of an attempt: connect, check, rendezvous, import, first step
REST = 15.0  # the steps of the program that remain, and the end of the run
SAMPLES = 20.0  # two stack samples, each with its patience, and 4 s between them
LOST = LEASE + GRACE + FENCE + 3.0
MOST_LOAD = 8.0  # the load factor is never above it


class Target(Enum):
    """What a fault strikes, and so whom a verdict may name."""

    RANK = "a rank"
    NODE = "a node"
    LINK = "a node's traffic with another"
    CONTROLLER = "the controller"
    JOB = "the job"
    SPARE = "a hot spare"
    NONE = "no part of the run"


class Way(Enum):
    """How the nodes of a round are had."""

    SSH = "ssh"
    JOIN = "join"
    SLURM = "slurm"
    ELSEWHERE = "elsewhere"  # over ssh, by a controller on the hot spare


class Ends(Enum):
    """How a run must go on after a fault."""

    SURVIVES = "no attempt fails, exit 0"
    RETRIED = "another attempt, exit 0"
    FAILS = "no other attempt, exit 1"
    HANGS = "exit 5, or with --on-hang restart another attempt"
    STOPPED = "ended in order, no verdict"
    EITHER = "goes on, or another attempt, or a verdict on the link"


class When(Enum):
    """The moments at which a fault may strike."""

    BEFORE = "before the command"
    STEPS = "while all ranks train"
    RANKS = "once ranks have started"
    ANY = "at any time from the first connection on"


class Fault(NamedTuple):
    """A row: `bound` in seconds on a quiet machine, `code` where the run does not end with 0, `lasting` (least and
    most) seconds of what passes. `causes`: those that a verdict may name with the culprit, any where there is none."""

    name: str
    what: str
    target: Target
    when: When
    ends: Ends
    bound: float
    causes: tuple[str, ...] = ()
    code: int = DONE
    lasting: tuple[float, float] = (0.0, 0.0)
    way: Way = Way.SSH


_GOES_ON = START + REST
_AGAIN = GRACE + 2 * START + REST
_LOST = LOST + 2 * START + REST
_HUNG_UP = 6.0 + GRACE  # a node that hung up is given up, where its host answers
_SILENT = ("node-network-down", "ssh-unreachable")
_HANG = HANG_TIMEOUT + SAMPLES + 2 * START + REST + INIT_TIMEOUT

# fmt: off
FAULTS = (
    Fault("none", "nothing", Target.NONE, When.STEPS, Ends.SURVIVES, _GOES_ON),
    # ranks
    Fault("kill-rank", "SIGKILL to a rank", Target.RANK, When.RANKS, Ends.RETRIED, _AGAIN, ("rank-killed",)),
    Fault("stop-rank", "SIGSTOP to a rank", Target.RANK, When.RANKS, Ends.HANGS, _HANG,
          ("straggler", "rendezvous-timeout"), HANG),  # the latter before it has entered init_process_group
    Fault("term-rank", "SIGTERM to a rank", Target.RANK, When.RANKS, Ends.RETRIED, _AGAIN, ("rank-killed",)),
    Fault("raise", "a rank raises ValueError", Target.RANK, When.STEPS, Ends.FAILS, GRACE + 10,
          ("program-exception",), PROGRAM_FAILED),
    Fault("raise-outside", "a rank raises ConnectionResetError", Target.RANK, When.STEPS, Ends.RETRIED, _AGAIN,
          ("program-exception", "peer-died")),
    Fault("leave", "a rank ends with 0", Target.RANK, When.STEPS, Ends.RETRIED, _AGAIN, ("rank-exited-early",)),
    Fault("sleep", "a rank sleeps before a collective", Target.RANK, When.STEPS, Ends.HANGS, _HANG,
          ("straggler",), HANG),
    Fault("segfault", "a rank crashes in C", Target.RANK, When.STEPS, Ends.RETRIED, _AGAIN, ("segfault-native",)),
    Fault("memory", "a rank runs out of memory of its control group", Target.RANK, When.STEPS, Ends.FAILS,
          GRACE + 15, ("host-out-of-memory",), PROGRAM_FAILED),
    Fault("stop-at-end", "a rank is stopped while the others end with 0", Target.RANK, When.STEPS, Ends.HANGS, _HANG,
          (), HANG),
    # ours on the nodes
    Fault("kill-agent", "SIGKILL to an agent", Target.NODE, When.ANY, Ends.RETRIED, _AGAIN),
    Fault("stop-agent", "SIGSTOP to an agent", Target.NODE, When.RANKS, Ends.RETRIED, _AGAIN + 10),
    Fault("kill-supervisor", "SIGKILL to a supervisor", Target.NODE, When.ANY, Ends.RETRIED, _AGAIN),
    Fault("kill-relay", "SIGKILL to a relay", Target.NODE, When.RANKS, Ends.SURVIVES, _GOES_ON),
    Fault("kill-client", "SIGKILL to an ssh client", Target.NODE, When.RANKS, Ends.SURVIVES, _GOES_ON),
    Fault("relay-and-rank", "SIGKILL to a relay and a rank of one host", Target.RANK, When.STEPS, Ends.RETRIED,
          _AGAIN, ("rank-killed",)),
    Fault("strangers", "others connect to the agents' sockets", Target.NONE, When.RANKS, Ends.SURVIVES, _GOES_ON,
          lasting=(1.0, 5.0)),
    Fault("other-user", "another user looks for the agents' sockets", Target.NONE, When.RANKS, Ends.SURVIVES, _GOES_ON,
          lasting=(1.0, 5.0)),
    Fault("cleaner", "a cleaner of /tmp takes what is not locked", Target.NONE, When.RANKS, Ends.SURVIVES, _GOES_ON),
    # hosts and links
    Fault("link-down", "a host's link goes down", Target.NODE, When.ANY, Ends.RETRIED, _LOST, _SILENT),
    Fault("link-flap", "a host's link is down for less than the lease", Target.NODE, When.STEPS, Ends.SURVIVES,
          _GOES_ON + 10, lasting=(0.5, 4.0)),
    Fault("power-off", "a host loses its power", Target.NODE, When.ANY, Ends.RETRIED, _LOST, _SILENT),
    Fault("spare-off", "the hot spare loses its power", Target.SPARE, When.ANY, Ends.SURVIVES,
          _GOES_ON + CONNECT_TIMEOUT),
    Fault("ssh-dropped", "a host drops what comes to its port 22", Target.NODE, When.RANKS, Ends.RETRIED, _LOST),
    Fault("ssh-rejected", "a host rejects new ssh connections for a while", Target.NODE, When.RANKS,
          Ends.SURVIVES, _GOES_ON, lasting=(1.0, 5.0)),
    Fault("one-way", "a host hears nothing of one other host", Target.LINK, When.STEPS, Ends.EITHER, _HANG,
          code=HANG),
    Fault("loss", "a host loses 30 % of its packets for a while", Target.LINK, When.STEPS, Ends.EITHER, _HANG,
          code=HANG, lasting=(3.0, 12.0)),
    Fault("rate", "a host's link carries 256 kbit/s for a while", Target.LINK, When.STEPS, Ends.EITHER, _HANG,
          code=HANG, lasting=(3.0, 12.0)),
    Fault("port-taken", "the master's port is taken until some seconds after the first try", Target.NODE, When.BEFORE,
          Ends.RETRIED, 40.0 + _GOES_ON, ("port-in-use",), lasting=(3.0, 15.0)),
    # disks, clocks
    Fault("node-disk", "the disk of a node directory is full", Target.NODE, When.RANKS, Ends.SURVIVES, _GOES_ON),
    Fault("run-disk", "the disk of the run directory is full", Target.CONTROLLER, When.RANKS, Ends.SURVIVES,
          _GOES_ON),
    Fault("clock", "a host's clock is wrong by 5 minutes, and one of its ranks is killed", Target.RANK,
          When.STEPS, Ends.RETRIED, _AGAIN),
    Fault("node-stall", "the disk of a node directory does not answer", Target.NODE, When.STEPS, Ends.RETRIED, _LOST,
          lasting=(1.5 * LEASE, 2.5 * LEASE)),
    Fault("run-stall", "the disk of the run directory does not answer", Target.CONTROLLER, When.STEPS, Ends.SURVIVES,
          _GOES_ON, lasting=(1.2 * LEASE, 2.0 * LEASE)),
    Fault("run-stall-ctrl-c", "the disk of the run directory does not answer, and SIGINT to the controller",
          Target.CONTROLLER, When.STEPS, Ends.STOPPED, STOP_GRACE + 10, code=CTRL_C,
          lasting=(1.2 * LEASE, 2.0 * LEASE)),
    # the controller
    Fault("no-directory", "the controller's working directory is removed, and an ssh client is killed",
          Target.CONTROLLER, When.RANKS, Ends.SURVIVES, _GOES_ON),
    Fault("kill-controller", "SIGKILL to the controller, then `allranks attach`", Target.CONTROLLER,
          When.RANKS, Ends.SURVIVES, _GOES_ON + 10, lasting=(0.0, 3.0)),
    Fault("pause-controller", "SIGSTOP to the controller for less than the lease", Target.CONTROLLER, When.ANY,
          Ends.SURVIVES, _GOES_ON + 5, lasting=(0.5, 5.0)),
    Fault("attach", "`allranks attach` to a run whose controller lives", Target.CONTROLLER, When.ANY,
          Ends.SURVIVES, _GOES_ON),
    Fault("take-over", "`allranks attach --take-over`", Target.CONTROLLER, When.RANKS, Ends.SURVIVES, _GOES_ON),
    Fault("false-take-over", "`allranks attach --take-over` of another protocol", Target.CONTROLLER, When.RANKS,
          Ends.SURVIVES, _GOES_ON),
    Fault("flap-and-attach", "a host's link is down while the controller is killed, then `allranks attach`",
          Target.CONTROLLER, When.STEPS, Ends.SURVIVES, _GOES_ON + 20, lasting=(0.5, 4.0)),
    Fault("term", "SIGTERM to the controller", Target.CONTROLLER, When.ANY, Ends.STOPPED, STOP_GRACE + 10,
          code=TERMINATED),
    Fault("ctrl-c", "SIGINT to the controller", Target.CONTROLLER, When.ANY, Ends.STOPPED, STOP_GRACE + 10,
          code=CTRL_C),
    Fault("ctrl-c-twice", "SIGINT to the controller, twice", Target.CONTROLLER, When.ANY, Ends.STOPPED,
          GRACE + 10, code=CTRL_C),
    Fault("stop", "`allranks stop`", Target.CONTROLLER, When.ANY, Ends.STOPPED, STOP_GRACE + 10, code=TERMINATED),
    Fault("hang-up", "the terminal is closed", Target.CONTROLLER, When.ANY, Ends.STOPPED, STOP_GRACE + 10,
          code=TERMINATED),
    Fault("abandoned", "SIGKILL to the controller, and `allranks stop` after it", Target.CONTROLLER,
          When.RANKS, Ends.STOPPED, STOP_GRACE + 10, code=TERMINATED),
    # nodes that join
    Fault("join-none", "nothing, on nodes that join", Target.NONE, When.STEPS, Ends.SURVIVES, _GOES_ON, way=Way.JOIN),
    Fault("join-kill-rank", "SIGKILL to a rank of a joined node", Target.RANK, When.STEPS, Ends.RETRIED, _AGAIN,
          ("rank-killed",), way=Way.JOIN),
    Fault("join-kill-agent", "SIGKILL to the agent of a joined node", Target.NODE, When.STEPS, Ends.RETRIED, _AGAIN,
          ("agent-killed",), way=Way.JOIN),
    Fault("join-kill", "SIGKILL to a node's `allranks join`", Target.NODE, When.ANY, Ends.FAILS,
          _HUNG_UP + NODE_WAIT + 10, code=NODE_FAILED, way=Way.JOIN),
    Fault("join-again", "SIGKILL to a node's `allranks join`, which is started again", Target.NODE, When.STEPS,
          Ends.RETRIED, _HUNG_UP + _AGAIN, ("agent-killed",), lasting=(0.0, NODE_WAIT / 3), way=Way.JOIN),
    Fault("join-flap", "a joined node's link is down for less than the lease", Target.NODE, When.STEPS, Ends.SURVIVES,
          _GOES_ON + 10, lasting=(0.5, 4.0), way=Way.JOIN),
    Fault("join-off", "a joined node loses its power", Target.NODE, When.RANKS, Ends.FAILS, LOST + NODE_WAIT + 10,
          code=NODE_FAILED, way=Way.JOIN),
    Fault("join-strangers", "others connect to the port of node 0, from a node too", Target.NONE, When.ANY,
          Ends.SURVIVES, _GOES_ON, lasting=(1.0, 8.0), way=Way.JOIN),
    Fault("join-term", "SIGTERM to a node's `allranks join`", Target.CONTROLLER, When.STEPS, Ends.STOPPED,
          STOP_GRACE + 10, code=TERMINATED, way=Way.JOIN),
    Fault("join-kill-controller", "SIGKILL to the `allranks join` of node 0, and `allranks stop` after it",
          Target.JOB, When.STEPS, Ends.FAILS, LOST + 10, ("controller-ended",), NODE_FAILED, way=Way.JOIN),
    # nodes of Slurm
    Fault("slurm-none", "nothing, in an allocation of Slurm", Target.NONE, When.STEPS, Ends.SURVIVES, _GOES_ON,
          way=Way.SLURM),
    Fault("slurm-kill-rank", "SIGKILL to a rank in an allocation", Target.RANK, When.STEPS, Ends.RETRIED, _AGAIN,
          ("rank-killed",), way=Way.SLURM),
    Fault("slurm-kill-agent", "SIGKILL to an agent in an allocation", Target.NODE, When.STEPS, Ends.RETRIED, _AGAIN,
          ("agent-killed",), way=Way.SLURM),
    Fault("slurm-kill-step", "SIGKILL to a slurmstepd", Target.NODE, When.STEPS, Ends.EITHER, _LOST, (),
          NODE_FAILED, way=Way.SLURM),
    Fault("slurm-kill-task", "SIGKILL to Slurm's task on a node", Target.NODE, When.STEPS, Ends.FAILS, _LOST,
          ("agent-killed",), NODE_FAILED, way=Way.SLURM),
    Fault("slurm-cancel", "`scancel` of the job", Target.JOB, When.RANKS, Ends.FAILS, STOP_GRACE + 15,
          ("slurm-cancelled",), NODE_FAILED, way=Way.SLURM),
    Fault("slurm-drain", "a node of the job is drained", Target.NONE, When.RANKS, Ends.SURVIVES, _GOES_ON,
          way=Way.SLURM),
    Fault("slurm-down", "a node of the job is set down", Target.NODE, When.STEPS, Ends.FAILS, LOST + 10,
          ("node-network-down",), NODE_FAILED, way=Way.SLURM),
    # the controller is on the hot spare
    Fault("away-kill", "SIGKILL to the launching allranks", Target.NONE, When.ANY, Ends.SURVIVES, _GOES_ON,
          way=Way.ELSEWHERE),
    Fault("away-kill-ssh", "SIGKILL to the launching ssh client", Target.NONE, When.ANY, Ends.SURVIVES, _GOES_ON,
          way=Way.ELSEWHERE),
    Fault("away-hang-up", "the launching terminal is closed", Target.NONE, When.ANY, Ends.SURVIVES, _GOES_ON,
          way=Way.ELSEWHERE),
    Fault("away-cut", "the controller's host hears nothing of the launching machine", Target.NONE, When.ANY,
          Ends.SURVIVES, _GOES_ON, way=Way.ELSEWHERE),
    Fault("away-stop", "`allranks stop` by name", Target.CONTROLLER, When.RANKS, Ends.STOPPED, STOP_GRACE + 10,
          code=TERMINATED, way=Way.ELSEWHERE),
    Fault("away-off", "the controller's host loses its power, and `allranks attach --take-over` once the lease is over",
          Target.JOB, When.STEPS, Ends.FAILS, 2 * LOST + CONNECT_TIMEOUT + 15, ("controller-ended",), NODE_FAILED,
          way=Way.ELSEWHERE),
    Fault("away-take-over", "the controller's host loses its power, then `allranks attach --take-over` here",
          Target.CONTROLLER, When.STEPS, Ends.SURVIVES, _GOES_ON + 10, lasting=(0.0, 3.0), way=Way.ELSEWHERE),
)
# fmt: on
BY_NAME = {fault.name: fault for fault in FAULTS}


# Another controller must be there before the lease is over.
ATTACHED_TO = ("kill-controller", "abandoned", "flap-and-attach", "away-take-over")


def load_factor(load: float, cores: int) -> float:
    """By how much bounds grow on a busy machine: the processes that want a core, for each core; from 1 to MOST_LOAD.

    >>> load_factor(1.0, 2), load_factor(8.0, 2), load_factor(90.0, 2)
    (1.0, 4.0, 8.0)
    """
    return min(MOST_LOAD, max(1.0, load / cores))


def lease(fault: Fault, factor: float) -> float:
    """Seconds of the lease. It grows with the load where another controller must be there before it is over.

    >>> lease(BY_NAME["kill-rank"], 4.0), lease(BY_NAME["kill-controller"], 4.0)
    (10.0, 40.0)
    """
    return LEASE * factor if fault.name in ATTACHED_TO else LEASE


def codes(fault: Fault, is_started: bool, on_hang: str) -> frozenset[int]:
    """The exit codes that are right. `is_started`: all ranks have shown a step before the fault."""
    if fault.ends in (Ends.SURVIVES, Ends.RETRIED):
        right = {DONE}
        if not is_started and fault.target is Target.RANK:
            right.add(PROGRAM_FAILED)  # a rank that is killed before any progress is not tried again
        return frozenset(right)
    if fault.ends is Ends.HANGS and on_hang == "restart":
        return frozenset({DONE})
    if fault.ends is Ends.EITHER:
        return frozenset({DONE, NODE_FAILED, fault.code})
    return frozenset({fault.code})
