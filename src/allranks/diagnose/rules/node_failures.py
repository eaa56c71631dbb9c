"""A node, the launching machine or allranks' own processes failed: silence, a pause, a fault, a failed start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from allranks.findings import Where
from allranks.protocol.messages import FaultMessage
from allranks.protocol.run_facts import LauncherPaused, Stamped
from allranks.settings.runspec import beat_of
from allranks.text import with_reason

from ..candidate import Candidate, Strength
from ..causes import CAUSES
from ..incident import CHANNEL, Incident
from ..signatures import cause_of
from ..words import SIGNALS, controller_ended, count_ranks, name_nodes, one_line, utc
from .failures import NOT_ON_PATH

LEASE_OVER = frozenset({"lease-over", "ended-alone"})


# -- silence ---------------------------------------------------------------------------------------------

OUR_LINK = "check this machine's own link first with `ip -br link`, and ping one of the nodes"
HUNG_UP = (
    "run `journalctl -k --since -1h | grep -i 'killed process'` on {node}, and look at {looks}. Its task, its terminal "
    "or the host may have ended too"
)
STOPPED_AGENT = (
    "`ps -eo pid,stat,args | grep allranks` shows T where Ctrl-Z, a debugger or kill -STOP stopped it, and D where "
    "it waits for a disk. A frozen cgroup or container stops it too"
)


def node_lost(incident: Incident) -> Candidate | None:
    """Name the nodes that fell silent, the first of them first; an agent that died is reported by a fault instead."""
    lost = sorted((n for n in incident.lost if n.node not in incident.agent_deaths), key=lambda n: n.fact.last_heard)
    if not lost:
        return None
    names = [n.node for n in lost]
    which = name_nodes(names)
    heard = lost[0].fact.last_heard
    when = f"last heard at {utc(heard)}, given up {max(0.0, lost[0].t - heard):.1f} s later"
    cause = CAUSES["node-network-down"]
    candidate = Candidate(
        cause.id,
        0.9,
        f"{which} fell silent: the link or the power is lost ({when})",
        "\n".join(cause.remedy(Where(node=name)) for name in names[:3]),
        t=heard,
        where=Where(node=names[0] if len(names) == 1 else None),
        evidence=tuple(
            f"{n.node}: last heard {utc(n.fact.last_heard)}, nothing was heard for the lease" for n in lost[:3]
        ),
        culprits=incident.ranks_of(names),
    )
    not_opened = next((f for f in incident.findings if f.check == CHANNEL), None)
    if not_opened is not None:  # this machine had no means to open another connection
        message = f"the connection to {which} ended, and no other could be opened: {not_opened.message}"
        return replace(
            candidate,
            cause=not_opened.id,
            confidence=0.8,
            message=message,
            remedy=not_opened.remedy,
            where=Where(),
        )
    if (incident.is_joined or incident.logins.is_slurm) and all(n.fact.hung_up for n in lost):  # the network was there
        dialler = "Slurm's task" if incident.logins.is_slurm else "`allranks join`"
        message = f"{dialler} ended on {which}: its host closed the connection, and no other came ({when})"
        looks = "srun.log of the run directory" if incident.logins.is_slurm else "what `allranks join` printed there"
        remedy = "\n".join(HUNG_UP.format(node=name, looks=looks) for name in names[:3])
        evidence = tuple(
            f"{n.node}: its connection was closed from there after {utc(n.fact.last_heard)}" for n in lost[:3]
        )
        return replace(candidate, cause="agent-killed", message=message, remedy=remedy, evidence=evidence)
    if incident.logins.local.issuperset(names):  # they need no link
        message = f"{which} fell silent: the agent on this machine did not run for the whole lease ({when})"
        return replace(candidate, cause="agent-killed", confidence=0.7, message=message, remedy=STOPPED_AGENT)
    if len(names) > 1 and set(names).issuperset(incident.ranks_by_node):
        message = f"all {len(names)} nodes fell silent ({when}): rather this machine's own link than theirs"
        return replace(candidate, confidence=0.6, message=message, remedy=OUR_LINK)
    return candidate


# -- a pause of the launching machine --------------------------------------------------------------------

TICKS = 1.0  # seconds within which an agent sees that its lease is over, and what it had sent is read after a pause
AWAKE = "keep it awake meanwhile with `systemd-inhibit --what=sleep allranks run …`"
RUN_ON = "do not stop allranks run (Ctrl-Z, kill -STOP), as allranks attach and --detach leave the terminal instead"
FASTER = "name a place on a disk of that machine with --runs-dir"
DETACH = "start it with --detach on a machine that stays awake, or with a --lease longer than such a pause, or"


def launcher_paused(incident: Incident) -> Candidate | None:
    """Explain ended ranks by a pause of the launching machine that was as long as the lease.

    When it began, the last word that a node had heard was up to one beat old. A pause before or after that (of the
    launcher that took the run over, for example) did not end these ranks.
    """
    margin = beat_of(incident.lease) + TICKS
    long = [p for p in incident.pauses if incident.lease and p.fact.seconds + margin >= incident.lease]
    nodes_by_pause = {pause: _ended_in(incident, pause, margin) for pause in long}
    pause = max(long, key=lambda p: (bool(nodes_by_pause[p]), p.fact.seconds), default=None)
    if pause is None or not nodes_by_pause[pause]:
        return None
    ended = nodes_by_pause[pause]
    began = pause.t - pause.fact.seconds
    nodes = [node for node in incident.ranks_by_node if node in ended]  # in the order of the ranks
    nodes += sorted(set(ended).difference(nodes))
    evidence = f"lease over on: {', '.join(nodes[:8])}"
    candidate = Candidate("controller-paused", 0.95, "", t=min([began, *(n.fact.last_heard for n in incident.lost)]))
    if pause.fact.ended:  # nothing has said how
        over = max(_lease_over_times(incident).values(), default=began + incident.lease)
        message = f"{controller_ended(began)}: the lease of {incident.lease:g} s ended the ranks at {utc(over)}"
        word = f"its last word in status.json: {utc(began)}. Attached: {utc(pause.t)}"
        cause = CAUSES["controller-ended"]
        candidate = replace(candidate, cause=cause.id, remedy=cause.remedy())
        return replace(candidate, message=message, evidence=(word, evidence))
    what = "allranks itself did not run on the launching machine"
    how = "stopped by a signal, frozen, or starved of its CPU"
    remedy = RUN_ON
    if pause.fact.slept:
        what = "the launching machine slept"
        how = "suspended, by CLOCK_BOOTTIME"
        remedy = AWAKE
    elif pause.fact.waited:
        what = "allranks itself waited on the launching machine"
        how = "for a disk perhaps"
        remedy = FASTER
    message = f"{what} for {pause.fact.seconds:.0f} s, so the lease of {incident.lease:g} s was over: "
    message += "the nodes ended their ranks, as they do when nothing is heard from it"
    when = f"from {utc(began)} to {utc(pause.t)}: {how}"
    return replace(candidate, message=message, remedy=f"{DETACH} {remedy}", evidence=(when, evidence))


def _ended_in(incident: Incident, pause: Stamped[LauncherPaused], margin: float) -> list[str]:
    """Find the nodes whose ranks a pause has ended, by the last word that they had heard."""
    last_words = {lost.node: lost.fact.last_heard for lost in incident.lost}
    last_words.update({node: over - incident.lease for node, over in _lease_over_times(incident).items()})
    until = pause.t + TICKS
    # no agent was left: one that answers is read above
    if pause.fact.ended and pause.fact.seconds >= incident.lease + margin:
        last_words.update({fault.node: pause.t for fault in incident.faults if fault.fact.id == "no-run"})
        until += incident.lease
    return [node for node, t in last_words.items() if pause.t - pause.fact.seconds - margin <= t <= until]


def _lease_over_times(incident: Incident) -> dict[str, float]:
    """Find when each node's lease was over: the ends of its ranks tell it where its agent is heard only later."""
    times = {fault.node: fault.t for fault in incident.faults if fault.fact.id in LEASE_OVER}
    for end in incident.exits:
        if end.node in times and end.fact.expected:
            times[end.node] = min(times[end.node], end.t)
    return times


# -- allranks' own processes -----------------------------------------------------------------------------

KILLED = "run on {node}: `journalctl -k | grep -i 'killed process'`, and ask who did it (pkill, an administrator, "
KILLED += "a limit)"
STOPPED = "find on {node} who stopped it (kill -STOP, a debugger, a frozen cgroup or container), then run again"
LINK = "run `ping -c 100 {node}`, and look for a suspended machine, a Ctrl-Z or a firewall that drops idle connections"


NODE_LOG = "`allranks logs --node {node}` shows the node's log"


# Faults of an agent's start: confidence, what failed, and what to do; the fault's own message names the cause.
STARTS = {
    "node-dir": (
        0.9,
        "no usable directory for the run",
        "choose another with --node-dir, after `df -h; ls -ld` on {node}",
    ),
    "few-files": (
        0.95,
        "the agent could not start",
        "raise 'nofile' in /etc/security/limits.conf to 65536 on {node}, and log in again",
    ),
    "protocol": (0.7, "the two ends of the channel do not understand each other", ""),
    "boot": (0.7, "the agent could not start", ""),
}


def agent_fault(incident: Incident) -> Candidate | None:
    """Take the earliest fault that is not a failed start of a rank; nodes with the same one are named as one."""
    faults = [f for f in incident.faults if f.fact.id != "start-failed"]
    if not faults:
        return None
    first = min(faults, key=lambda f: (f.fact.id in LEASE_OVER, f.t or float("inf")))
    same = (first.fact.id, first.fact.message)
    nodes = list(dict.fromkeys(f.node for f in faults if (f.fact.id, f.fact.message) == same))
    reading = _read_fault(incident, first, nodes)
    is_of_node = len(nodes) == 1 and reading.cause != "internal-error"  # a defect of allranks is not the node's
    return replace(
        reading,
        t=first.t or None,
        remedy=reading.remedy.format(node=first.node),
        where=Where(node=nodes[0] if is_of_node else None),
        evidence=tuple(one_line(f"{f.node}: {f.fact.id}: {f.fact.message}") for f in faults[:3]),
    )


def _read_fault(incident: Incident, fault: Stamped[FaultMessage], nodes: Sequence[str]) -> Candidate:
    where = name_nodes(nodes)
    if fault.fact.id in ("agent-death", "supervisor-lost"):
        return _read_death(incident, fault, nodes)
    if fault.fact.id == "internal-error":
        message = f"allranks itself failed on {where}: {one_line(fault.fact.message)}, and it ended the ranks there"
        return Candidate("internal-error", 0.95, message)
    if fault.fact.id in LEASE_OVER:
        message = f"{where} ended the ranks there: nothing was heard from this machine for the whole lease"
        return Candidate("node-network-down", 0.6, message, LINK, Strength.WEAK)
    confidence, what, remedy = STARTS.get(fault.fact.id, (0.7, fault.fact.id, ""))
    last = fault.fact.message
    if "Traceback" in last and not remedy:
        last = last.rstrip().rsplit("\n", 1)[-1]  # the exception
    cause = "too-many-open-files" if fault.fact.id == "few-files" else cause_of(fault.fact.message)
    return Candidate(cause, confidence, with_reason(f"{where}: {what}", one_line(last)), remedy or NODE_LOG)


def _read_death(incident: Incident, fault: Stamped[FaultMessage], nodes: Sequence[str]) -> Candidate:
    """Read the death of an agent or a supervisor, which only a person, a script or the kernel brings about."""
    part = "agent" if fault.fact.id == "agent-death" else "supervisor"
    how = one_line(fault.fact.message).removeprefix("the supervisor process ")
    how = re.sub(r"signal (\d{1,9})", lambda match: SIGNALS.get(int(match[1]), match[0]), how)
    head = f"the allranks {part} on {name_nodes(nodes)} {how}"
    ranks = incident.ranks_by_node.get(fault.node, ())
    took = ""
    if ranks and part == "agent" and len(nodes) == 1:
        took = f" and took {count_ranks(ranks)} with it"
    if how.startswith("ended with code"):
        return Candidate("internal-error", 0.9, f"{head}{took}, by an error of its own")
    if "SIGKILL" in how and incident.oom_kills(fault.node):
        message = f"{head}{took}: the kernel ran out of memory there"
        return Candidate("host-out-of-memory", 0.8, message, KILLED)
    if "killed" in how or "stopped" in how:
        head += ", and not by allranks"
        took = took and f",{took}"
    return Candidate("agent-killed", 0.7, head + took, STOPPED if "stopped" in how else KILLED)


# -- ranks that could not be started ---------------------------------------------------------------------

ABSENT = (
    "run `ls -ld {path}` on {nodes}, then name another with --workdir, --python or --prelude, or copy it there: "
    "`run --sync` ships this directory"
)
NO_FORMAT = (
    "run `file {path}` on {nodes}. A script without a first line such as `#!/bin/bash` starts as `bash {path}`. A "
    "program for another processor has to be installed for this one"
)
_PATH = re.compile(r"could not (?:enter the working directory|run) (.{1,1000}?): ")
_RANK = re.compile(r"^rank (\d{1,9}) ")


def start_failed(incident: Incident) -> Candidate | None:
    """Name all nodes on which a rank's start failed the same way: no interpreter, program or working directory."""
    faults = sorted((f for f in incident.faults if f.fact.id == "start-failed"), key=lambda f: f.t)
    if not faults:
        return None
    first = faults[0]
    what = _without_rank(first)
    nodes = list(dict.fromkeys(f.node for f in faults if _without_rank(f) == what))
    path = "".join(_PATH.findall(first.fact.message)[:1]) or "PATH"
    fix = ABSENT if "/" in path or path == "PATH" else NOT_ON_PATH
    if "Exec format error" in what:  # execve(2), ENOEXEC
        fix = NO_FORMAT
    who = name_nodes(nodes)
    where = Where(node=nodes[0]) if len(nodes) == 1 else Where()
    rank = _RANK.match(first.fact.message)
    if len(nodes) == 1 and rank is not None:
        where = where._replace(rank=int(rank[1]))
        who = f"rank {rank[1]} on {nodes[0]}"
    return Candidate(
        cause_of(what),
        0.95,
        f"{who} {what}",
        fix.format(path=path, nodes=name_nodes(nodes)),
        t=first.t or None,
        where=where,
        evidence=tuple(one_line(f"{f.node}: {f.fact.message}") for f in faults[:3]),
        culprits=incident.ranks_of(nodes),
    )


def _without_rank(fault: Stamped[FaultMessage]) -> str:
    return one_line(_RANK.sub("", fault.fact.message))


RULES = {
    "start-failed": ("agent/rank_start.py: which call failed (chdir, execvpe), with strerror(3)", start_failed),
    "launcher-paused": (
        "CLOCK_BOOTTIME against CLOCK_MONOTONIC on the launching machine, gang/clocks",
        launcher_paused,
    ),
    "node-lost": ("allranks' own beats (docs/architecture.md: ping, pong)", node_lost),
    "agent-fault": (
        "agent/supervisor.py and agent/agent.py report how the other ended, agent/boot.py its own start",
        agent_fault,
    ),
}
