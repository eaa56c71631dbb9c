"""allranks' own processes on a node failed: agent killed or stopped, supervisor gone, no directory, no protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass

from allranks.findings import Where
from allranks.text import plural, with_reason

from ..candidate import Candidate, Strength
from ..incident import Fault, Incident
from ..signatures import cause_of
from ..words import SIGNALS, name_nodes, numbers, one_line

ID = "agent-fault"
SOURCE = "agent/supervisor.py and agent/agent.py: each tells how the other ended; agent/boot.py: node directory, start"
LEASE = {"lease-over", "ended-alone"}
WHO = "on {node}: journalctl -k | grep -i 'killed process'; ask who did it (pkill, an administrator, a limit)"
STOPPED = "on {node}: find who stopped it (kill -STOP, a debugger, a frozen cgroup or container), then run again"
LINK = "ping -c 100 {node}; look for a suspended machine, a Ctrl-Z or a firewall that drops idle connections"
NODE_DIR = "choose another with --node-dir; df -h and ls -ld on {node}"
FILES = "raise 'nofile' in /etc/security/limits.conf to 65536 on {node}, and log in again"
REPORT = "the node's log says more: allranks logs --node {node}"


@dataclass(frozen=True)
class _Reading:
    cause: str
    confidence: float
    message: str
    remedy: str = ""  # else the cause's own
    strength: Strength = Strength.ROOT


def apply(incident: Incident) -> Candidate | None:
    """The earliest fault that is no failed start; nodes with the same one are named together."""
    faults = [f for f in incident.faults if f.id != "start-failed"]
    if not faults:
        return None
    first = min(faults, key=lambda f: (f.id in LEASE, f.t or float("inf")))
    nodes = list(dict.fromkeys(f.node for f in faults if (f.id, f.message) == (first.id, first.message)))
    reading = _read(incident, first, name_nodes(nodes))
    return Candidate(
        ID,
        reading.cause,
        reading.strength,
        reading.message,
        reading.confidence,
        first.t or None,
        reading.remedy.format(node=first.node),
        _where(reading, nodes),
        tuple(one_line(f"{f.node}: {f.id}: {f.message}") for f in faults[:3]),
    )


def _where(reading: _Reading, nodes: list[str]) -> Where:
    """A defect of allranks is no fault of the node on which it shows."""
    return Where(node=nodes[0]) if len(nodes) == 1 and reading.cause != "internal-error" else Where()


def _read(incident: Incident, fault: Fault, nodes: str) -> _Reading:
    if fault.id in ("agent-death", "supervisor-lost"):
        return _death(incident, fault, nodes)
    if fault.id == "internal-error":
        message = f"allranks itself failed on {nodes}: {one_line(fault.message)}; it ended the ranks there"
        return _Reading("internal-error", 0.95, message)
    if fault.id in LEASE:
        message = f"{nodes} ended the ranks there: nothing was heard from this machine for the whole lease"
        return _Reading("node-network-down", 0.6, message, LINK, Strength.WEAK)
    cause = cause_of(fault.message)
    if fault.id == "node-dir":
        message = with_reason(f"{nodes}: no usable directory for the run", one_line(fault.message))
        return _Reading(cause, 0.9, message, NODE_DIR)
    if fault.id == "few-files":
        message = with_reason(f"{nodes}: the agent could not start", one_line(fault.message))
        return _Reading("too-many-open-files", 0.95, message, FILES)
    what = {"protocol": "the two ends of the channel do not understand each other", "boot": "the agent could not start"}
    head = what.get(fault.id, fault.id)
    return _Reading(cause, 0.7, with_reason(f"{nodes}: {head}", _last(fault.message)), REPORT)


def _death(incident: Incident, fault: Fault, nodes: str) -> _Reading:
    """Nobody but a person, a script or the kernel ends an agent."""
    part = "agent" if fault.id == "agent-death" else "supervisor"
    how = re.sub(r"^the supervisor process ", "", one_line(fault.message))
    how = re.sub(r"signal (\d+)", lambda m: SIGNALS.get(int(m[1]), m[0]), how)
    ranks = incident.ranks_by_node.get(fault.node, ())
    took = f" and took {plural(len(ranks), 'rank')} {numbers(ranks)} with it" if ranks else ""
    took = took if part == "agent" and "," not in nodes and " and " not in nodes else ""
    if how.startswith("ended with code"):
        message = f"the allranks {part} on {nodes} {how}{took}, by an error of its own"
        return _Reading("internal-error", 0.9, message)
    if "SIGKILL" in how and incident.oom_kills(fault.node):
        message = f"the allranks {part} on {nodes} {how}{took}: the kernel ran out of memory there"
        return _Reading("host-out-of-memory", 0.8, message, WHO)
    killed = ", and not by allranks" if "killed" in how or "stopped" in how else ""
    killed += "," if killed and took else ""
    stopped = "stopped" in how
    return _Reading("unknown", 0.7, f"the allranks {part} on {nodes} {how}{killed}{took}", STOPPED if stopped else WHO)


def _last(message: str) -> str:
    """Of a traceback the exception, else the first line."""
    return one_line(message.rstrip().rsplit("\n", 1)[-1]) if "Traceback" in message else one_line(message)
