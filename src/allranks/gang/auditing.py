"""Auditing: what to do where the ranks' samples show that the data is not split. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from allranks.findings import Finding

from .hanging import Hanging
from .states import Action, Audited, Note


class Auditing(Hanging):
    """Between Hanging and Gang: the part of the decisions that is about the data."""

    def on_audited(self, event: Audited, now: float) -> list[Action]:
        """Told at once; what is wrong stays in the result, and ends the run where the user wants that."""
        if event.attempt != self.attempt:
            return []
        told = self.audit_findings(event.findings)
        self.findings += [one for one in told if one.status != "ok"]
        notes: list[Action] = [Note("finding", one.to_json()) for one in told]
        return notes + self._fail(now) if any(one.status == "fail" for one in told) else notes

    def audit_findings(self, found: Iterable[Finding]) -> list[Finding]:
        """Faults are warnings, unless the user wants them to end the run: a rank may be meant to read what others
        read (tensor and pipeline parallelism), and only the user knows."""
        stop = self.spec.on_audit == "stop"
        return [one if stop or one.status != "fail" else dataclasses.replace(one, status="warn") for one in found]
