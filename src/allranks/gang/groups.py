"""Groups: which ranks have come through init_process_group, and with how many others. Pure.

A launcher can start processes that know nothing of each other: each trains alone on all of the data, and all end
with 0. So a process group that is smaller than planned is a failure, whoever the launcher is; so is a run under a
launcher of process groups in which there never was one.
"""

from __future__ import annotations

from dataclasses import replace

from allranks.findings import Finding, Where
from allranks.settings.tools import FRAMEWORKS, read_tool

from .roster import Roster
from .states import Action, Note, Report

ID = "world-size-mismatch"
_FIX = {
    "accelerate": "accelerate starts one process a machine with --cpu, or where distributed_type is NO or MULTI_CPU: "
    "use --launcher accelerate, which sets what it takes; a program without GPUs says Accelerator(cpu=True)",
    "deepspeed": "use --launcher deepspeed; the program must call deepspeed.initialize() or init_distributed()",
    "colossalai": "use --launcher colossalai; the program must call colossalai.launch_from_torch()",
}
_ANY = "leave rank and world size to the launcher: init_process_group() without them reads RANK and WORLD_SIZE"


class Groups(Roster):
    """Between Roster and Gang: the part of the decisions that is about process groups."""

    def on_report(self, event: Report, now: float) -> list[Action]:
        """A rank has entered or left init_process_group, has destroyed its group, or would be on its own."""
        rank = self.nodes[event.node].ranks.get(event.rank)
        alone = self._is_alone(event)
        actions = self._refuse_alone(alone, now) if alone is not None else []
        if rank is None:
            return actions
        leaving = rank.departure.hear(event, now)
        if leaving is not None:
            return [*actions, leaving]
        if event.what == "became":
            rank.became = event.program
            fields = {"node": event.node, "rank": event.rank, "program": event.program, "t": event.t}
            return [*actions, Note("rank-became", fields)]
        if event.what in ("init-entered", "destroyed"):
            rank.entered, rank.departed_t = True, event.t if event.what == "destroyed" else None
            what = "rank-entered" if rank.departed_t is None else "rank-departed"
            return [*actions, Note(what, {"node": event.node, "rank": event.rank, "t": event.t})]
        rank.never_joined = rank.never_joined or event.what == "never-joined"
        if event.what != "initialised" or rank.initialised_t is not None:
            return actions
        rank.initialised_t, self._sign_at = event.t, now
        if rank.exit is None:
            rank.state = "initialised"
        actions += [Note("rank-initialised", {"node": event.node, "rank": event.rank, "t": event.t})]
        times = [r.initialised_t for r in self.ranks()]
        if self.initialised_t is None and all(t is not None for t in times):
            self.initialised_t = max(t for t in times if t is not None)
            seconds = round(self.initialised_t - self.started, 3)
            actions.append(Note("all-initialised", {"seconds": seconds, "ranks": len(times), "t": self.initialised_t}))
        return actions

    @property
    def tool(self) -> str:
        """The launcher of other makers that starts the ranks, if there is one."""
        if self.testing or self.spec.launcher == "direct":
            return ""
        tool = read_tool(self.spec.command)
        return tool.name if tool is not None else self.spec.launcher.replace("command", "")

    def _is_alone(self, event: Report) -> Finding | None:
        planned = self.plan.world_size if self.plan is not None else 0
        if self.testing or event.what not in ("alone", "initialised") or not 0 < event.size < planned:
            return None
        where = Where(node=event.node, rank=event.rank)
        under = f" under {self.tool}" if self.tool else ""
        if event.what == "alone":
            how = f"the program starts with a world size of {event.size} on {event.node}"
        else:
            how = f"rank {event.rank} on {event.node} made a process group of {event.size}"
        verb = "trains alone" if event.size == 1 else "trains with some of the others alone"
        message = f"each process {verb}{under}: {how}, and {planned} ranks were planned"
        return self._alone(message, where)

    def _alone(self, message: str, where: Where) -> Finding:
        allowed = ID in self.spec.allow
        return Finding(ID, "warn" if allowed else "fail", message, _FIX.get(self.tool, _ANY), where)

    def _refuse_alone(self, finding: Finding, now: float) -> list[Action]:
        """Once: all processes say the same."""
        if any(f.id == ID and f.message.startswith("each process") for f in self.findings):
            return []
        self.findings.append(finding)
        note = Note("finding", finding.to_json())
        return [note] if finding.status == "warn" else [note, *self._fail(now)]

    def _never_joined(self, now: float) -> list[Action]:
        """All have ended with 0 and every one has said that it loaded torch and made no process group.

        A failure under a launcher that is there for process groups, else a warning: ranks may share nothing.
        """
        ranks = self.ranks()
        if self.testing or len(ranks) < 2 or not all(r.never_joined for r in ranks):
            return []
        message = f"each process trained alone under {self.tool or self.spec.launcher}: all {len(ranks)} ended with 0,"
        finding = self._alone(f"{message} and no process group was ever made", Where())
        if self.tool not in FRAMEWORKS:
            finding = replace(finding, status="warn")
        return self._refuse_alone(finding, now)

    def _fail(self, now: float) -> list[Action]:
        raise NotImplementedError
