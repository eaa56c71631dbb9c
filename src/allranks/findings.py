"""Finding and Verdict: what a check, a gate, a test or a rule says (pure).

A check that fails is a Finding, never an exception. `cause` is one of `CAUSES`, the labels a verdict
may carry; `where` says which node, peer, rank, interface or port it is about.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from allranks.protocol.codec import SCHEMA, computed, needs, omit_empty, spread
from allranks.protocol.records import NamedTuple

Status = Literal["ok", "warn", "fail", "skipped", "unknown"]
SURE = 0.5  # a verdict of at least this confidence stands, whatever the logs say
OF_SLURM = "slurm"  # the check of findings that are Slurm's own word


@omit_empty()
class Where(NamedTuple):
    """The place a finding is about; every part may be absent. `nodes` are all nodes, where they are several.

    `pid` is the rank's process on its node, `role` the part of the run that it is of."""

    node: str | None = None
    peer: str | None = None
    rank: int | None = None
    pid: int | None = None
    interface: str | None = None
    port: int | None = None
    gpu: int | None = None
    nodes: tuple[str, ...] = ()
    role: str = ""


def place_of(nodes: Iterable[str], ranks: Collection[int] = ()) -> Where:
    """Give the place of nodes and ranks: the only node and the only rank as such, several nodes as a list."""
    names = tuple(dict.fromkeys(nodes))
    where = Where(nodes=names)
    if len(names) == 1:
        where = Where(node=names[0])
    if len(ranks) == 1:
        return where._replace(rank=next(iter(ranks)))
    return where


@needs("message")
@omit_empty("check", "lasts")
class Finding(NamedTuple):
    """One sentence about one place, with what to do about it.

    `id` is a cause label (see `allranks.diagnose.causes`) or a check's own id; `evidence` holds short
    texts or figures that a reader can verify; `check` is the check that said it. One that `lasts` holds for
    later attempts too, and is evidence where its node fails.
    """

    id: str = ""
    status: Status = "unknown"
    message: str = ""
    remedy: str = ""
    where: Where = Where()
    evidence: tuple[str, ...] = ()
    check: str = ""
    lasts: bool | None = None


# `ssh NODE` and one word as a shell reads it: the whole command where that is quoted.
_SSH = r"""\bssh (?P<node>[^\s'"`;]+) (?P<word>(?:'[^']*'|"[^"]*"|[^\s'"`;])+)"""

_PING = r"""\bping (?P<node>[^\s'"`;]+)"""

_LABEL = r"[a-z][a-z0-9_-]*"  # of a cause or a check; a document may hold anything


class Logins(NamedTuple):
    """How someone at the launching machine gets a command onto a node: by `ssh NODE` where nothing else is said."""

    local: frozenset[str] = frozenset()  # nodes that are this machine
    ssh: Mapping[str, str] = {}  # what ssh takes for a node that it does not know by name: `-p 2222 root@10.0.0.3`
    is_slurm: bool = False  # a job has the nodes: a user may not log in there beside it (pam_slurm_adopt)


def typed_here(finding: Finding, logins: Logins) -> Finding:
    """Rewrite a remedy's commands so that they can be pasted here.

    `ssh local0 'dmesg -T'` becomes `dmesg -T` for a node of this machine, and `srun -N 1 -w n1 uptime` is what
    `ssh n1 uptime` becomes in a Slurm job. Else ssh and ping get what the list has for the node.
    """

    def here(match: re.Match[str]) -> str:
        node, word = match["node"], match["word"]
        if node in logins.local:
            return " ".join(shlex.split(word))
        if logins.is_slurm:
            shell = "sh -c " if len(shlex.split(word)[0].split()) > 1 else ""
            return f"srun -N 1 -w {node} {shell}{word}"
        return f"ssh {logins.ssh.get(node, node)} {word}"

    def pinged(match: re.Match[str]) -> str:
        return "ping " + logins.ssh.get(match["node"], match["node"]).rpartition(" ")[2].rpartition("@")[2]

    return finding._replace(remedy=re.sub(_PING, pinged, re.sub(_SSH, here, finding.remedy)))


def explain_command(name: str | None) -> str:
    """Name the command that prints the page of a cause or of a check; empty for what can be neither."""
    if name and re.fullmatch(_LABEL, name):
        return f"allranks explain {name}"
    return ""


def unset(name: str, of_run: Collection[str], forwarded: Collection[str] = ()) -> str:
    """Write how a variable of the ranks is removed where it was set.

    `of_run` are the names that --env and settings files set, `forwarded` those that come from the caller's environment.
    """
    if name in of_run:
        return f"remove {name} from --env, or from [env] of the settings file"
    if name in forwarded:
        return f"unset {name} in this shell"
    return f"unset {name}"


class Hang(NamedTuple):
    """A standstill: who keeps the others waiting."""

    cause: str
    message: str
    remedy: str
    confidence: float  # 0 to 1
    culprits: tuple[int, ...] = ()  # ranks that keep the others waiting
    victims: tuple[int, ...] = ()  # ranks that wait
    evidence: tuple[str, ...] = ()
    slow: bool = False  # the culprits work: it is not a standstill
    nodes: tuple[str, ...] = ()  # sender and receiver, where a link is at fault
    of_role: str = ""  # the culprits are ranks of this other role. The node is then the first of `nodes`

    @property
    def place(self) -> Where:
        """Where its `nodes` say that it is: a rank of another role, or a link."""
        if self.of_role:
            return Where(node=self.nodes[0], rank=self.culprits[0], role=self.of_role)
        sender, receiver = self.nodes
        return Where(node=sender or None, peer=receiver or None)


# What a verdict rests on: facts of processes, nodes and checks, else the tier of a line (diagnose/verdict.py).
EvidenceName = Literal["observed", "stated", "general", "own-failure", "complaint", "guess", "none"]


@needs("finding", "cause")
@spread("finding")
@computed("schema", "explain")
@omit_empty("decision")
class Verdict(NamedTuple):
    """The finding that explains the rest: one cause, one culprit, the victims. In JSON it has the finding's fields."""

    finding: Finding = Finding()
    cause: str | None = None  # None: nothing has failed
    confidence: float = 0.0  # 0 to 1; 0: not known
    victims: tuple[int, ...] = ()  # ranks
    culprits: tuple[int, ...] = ()  # ranks
    attempt: int = 0
    detected_after_s: float | None = None  # seconds from the failure to its detection, where both are known
    runners_up: tuple[Finding, ...] = ()  # what else failed, the likelier first
    decision: str = ""  # whether the run is tried again, and why, where retries were asked for
    evidence_kind: EvidenceName = "none"  # what the confidence goes by

    @property
    def schema(self) -> int:
        """The number of its form."""
        return SCHEMA

    @property
    def explain(self) -> str:
        """The command that prints the page of the cause."""
        return explain_command(self.cause)

    @property
    def confidence_text(self) -> str:
        """Write `85%`; empty where the confidence is not known."""
        if not 0 < self.confidence <= 1:
            return ""
        return f"{self.confidence:.0%}"


def in_role(verdict: Verdict, role: str, evidence: Sequence[str] = (), part: str = "") -> Verdict:
    """Name the role whose ranks a verdict speaks of, in its commands too; `evidence` comes behind its own.

    `part` names the rank's part in the role, where the sentence is to have that.
    """
    finding = verdict.finding
    if finding.where.role:  # ranks of another role are at fault, and the message names it
        return verdict
    remedy = re.sub(r"allranks logs(?! --role)", f"allranks logs --role {role}", finding.remedy)
    return verdict._replace(
        finding=finding._replace(
            message=f"{part or role}: {finding.message}",
            remedy=remedy,
            where=finding.where._replace(role=role),
            evidence=(*finding.evidence, *evidence),
        )
    )
