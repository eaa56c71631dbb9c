"""Finding and Verdict: what a check, a gate, a test or a rule says (pure).

A check that fails is a Finding, never an exception. `cause` is one of `CAUSES`, the labels a verdict
may carry; `where` says which node, peer, rank, interface or port it is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "skipped", "unknown"]
SURE = 0.5  # a verdict of at least this confidence stands, whatever the logs say


@dataclass(frozen=True)
class Where:
    """The place a finding is about; every part may be absent. `nodes` are all nodes, where they are several.

    `pid` is the rank's process on its node."""

    node: str | None = None
    peer: str | None = None
    rank: int | None = None
    pid: int | None = None
    interface: str | None = None
    port: int | None = None
    gpu: int | None = None
    nodes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Only the parts that are set."""
        found = {k: v for k, v in vars(self).items() if v is not None and k != "nodes"}
        return {**found, "nodes": list(self.nodes)} if self.nodes else found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Where:
        """From its JSON form; names that this version does not know are left out."""
        given = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        return cls(**{**given, "nodes": tuple(given.get("nodes") or ())})


@dataclass(frozen=True)
class Finding:
    """One sentence about one place, with what to do about it.

    `id` is a cause label (see `allranks.diagnose.causes`) or a check's own id; `evidence` holds short
    texts or figures that a reader can verify; `check` is the check that said it.
    """

    id: str
    status: Status
    message: str
    remedy: str = ""
    where: Where = field(default_factory=Where)
    evidence: tuple[str, ...] = ()
    check: str = ""

    def to_json(self) -> dict[str, Any]:
        """The JSON form fixed by the design."""
        found = {
            "id": self.id,
            "status": self.status,
            "where": self.where.to_json(),
            "message": self.message,
            "remedy": self.remedy,
            "evidence": list(self.evidence),
        }
        return {**found, "check": self.check} if self.check else found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """From its JSON form."""
        return cls(
            str(data["id"]), data["status"], str(data["message"]), str(data.get("remedy") or ""),
            Where.from_json(data.get("where") or {}), tuple(data.get("evidence") or ()), str(data.get("check") or ""),
        )  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The finding that explains the rest: one cause, one culprit, the victims.

    `confidence` is 0 to 1; `victims` are ranks; `detected_after_s` is seconds from the failure to its
    detection where both are known; `runners_up` are what else failed, the likelier first. `decision` says whether
    the run is tried again, and why, where retries were asked for.
    """

    finding: Finding
    cause: str
    confidence: float
    victims: tuple[int, ...] = ()
    attempt: int = 0
    detected_after_s: float | None = None
    runners_up: tuple[Finding, ...] = ()
    decision: str = ""

    def to_json(self) -> dict[str, Any]:
        """The JSON form fixed by the design: a Finding plus the verdict's own fields."""
        decided = {"decision": self.decision} if self.decision else {}
        return {
            "schema": 1,
            **self.finding.to_json(),
            "cause": self.cause,
            "confidence": self.confidence,
            "victims": list(self.victims),
            "attempt": self.attempt,
            "detected_after_s": self.detected_after_s,
            "runners_up": [f.to_json() for f in self.runners_up],
            **decided,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """From its JSON form, as verdict.json has it."""
        return cls(
            Finding.from_json(data), str(data["cause"]), float(data["confidence"]), tuple(data.get("victims") or ()),
            int(data.get("attempt") or 0), data.get("detected_after_s"),
            tuple(Finding.from_json(f) for f in data.get("runners_up") or ()), str(data.get("decision") or ""),
        )  # fmt: skip
