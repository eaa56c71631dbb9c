"""The Incident of an attempt: the fold of its facts with what its ranks left, error files and the ends of logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from allranks.cluster.nodes import JOINED, Cluster
from allranks.diagnose.incident import Incident, RankEnd
from allranks.diagnose.recorded import fold, last_attempt
from allranks.diagnose.rules.failures import ends_as_failed, names_ranks, of_rank
from allranks.protocol.frames import RANK_LOG
from allranks.protocol.run_facts import AttemptStart, Fact, Stamped, of_kind
from allranks.settings.runspec import Role
from allranks.settings.tools import is_one_process, is_program

from .directory import RunDirectory, read_error
from .documents import NodeEntry, RunDocument
from .opening import reachable_nodes
from .regular import read_end

TAIL = 16 << 10  # bytes at the end of a failed rank's log


class AttemptNodes(NamedTuple):
    """What is known of a run's last attempt without its facts."""

    number: int
    gang: tuple[str, ...]  # names by node rank
    indices: Mapping[str, int]  # of all nodes, by name
    one_process: bool  # of each node stands for all of its ranks


def read_incident(run: RunDirectory) -> Incident | None:
    """None where the events do not tell of an attempt: an empty or foreign directory, a disk that was full."""
    facts, _ = run.read_facts()
    if not any(of_kind(facts, AttemptStart)):
        return None
    try:
        return _read(run, run.read_run(), facts)
    except (AttributeError, KeyError, TypeError, ValueError):  # written by another version, or damaged
        return None


def _read(run: RunDirectory, document: RunDocument, facts: list[Stamped[Fact]]) -> Incident:
    lease = document.spec.get("lease")
    role = role_of(run, document)
    entries = [node for node in document.gang if _is_of(node, role)]
    command = document.command if role is None else role.command
    launcher = document.launcher if role is None else role.launcher
    nodes_of_role = reachable_nodes(node for node in document.nodes if _is_of(node, role))
    logins = Cluster(tuple(nodes_of_role), document.source).logins
    known = Incident(
        command=command,
        lease=float(lease) if isinstance(lease, (int, float)) else 0.0,
        logins=logins._replace(is_slurm=document.spec.get("slurm") is True),
        is_joined=document.source == JOINED,
        withheld=document.withheld,
    )
    nodes = AttemptNodes(
        last_attempt(facts),
        tuple(node.name for node in entries),
        {node.name: node.index or 0 for node in document.nodes},
        is_one_process(launcher, command),
    )
    return make_incident(run, facts, nodes, known)


def _is_of(node: NodeEntry, role: Role | None) -> bool:
    return role is None or node.role == role.name


def make_incident(run: RunDirectory, facts: Iterable[Stamped[Fact]], nodes: AttemptNodes, known: Incident) -> Incident:
    """Make the Incident of an attempt, live or saved: `known` is what is known without the facts.

    Raise DecodeError where an end does not have its node.
    """
    of_run = list(facts)
    incident = fold(of_run, nodes.number, nodes.gang, nodes.one_process, known)
    is_script = is_program(known.command)
    ends = tuple(_complete(run, end, nodes, is_script) for end in incident.exits)
    if nodes.one_process and any(names_ranks(end.tail) for end in ends):
        incident = fold(of_run, nodes.number, nodes.gang, known=known)
    return replace(incident, exits=ends)


def _complete(run: RunDirectory, end: RankEnd, nodes: AttemptNodes, is_script: bool) -> RankEnd:
    if end.fact.error is None:
        end = replace(end, fact=end.fact._replace(error=read_error(run, nodes.number, end.rank)))
    if end.fact.code == 0 and (end.fact.expected or not is_script):
        return end
    tail = _read_tail(run, nodes.indices.get(end.node, 0), end, nodes.number)
    if end.fact.code != 0:
        return replace(end, tail=tail)
    return replace(end, tail=tail, hides=True) if ends_as_failed(tail) else end


def _read_tail(run: RunDirectory, index: int, end: RankEnd, attempt: int) -> str:
    log = run.log_path(index, end.node, RANK_LOG, end.rank, attempt)
    if log.exists():
        return read_end(log, TAIL)
    logs = sorted(log.parent.glob("rank_*.log"))  # another launcher's: one log for all ranks of the node
    if not logs:
        return ""
    return of_rank(read_end(logs[0], TAIL), end.rank)


def role_of(run: RunDirectory, document: RunDocument) -> Role | None:
    """Give the role whose place a run directory is; None in a plain run."""
    roles = document.roles
    return next((role for role in roles if role.name == run.role), next(iter(roles), None))
