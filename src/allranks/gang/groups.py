"""Groups: which ranks have come through init_process_group, and with how many others. Pure.

A launcher can start processes that know nothing of each other: each trains alone on all of the data, and all end
with 0. So a process group that is smaller than planned is a failure, whoever the launcher is; so is a run under a
launcher of process groups in which there never was one.
"""

from __future__ import annotations

from allranks.findings import Finding, Status, Where
from allranks.protocol.run_facts import AllInitialised, RankBecame, RankDeparted, RankEntered, RankInitialised
from allranks.settings.tools import FRAMEWORKS, read_tool

from .ending import Ending
from .members import RankState
from .roster import Roster
from .states import Action, Report

ID = "world-size-mismatch"
_FIX = {
    "accelerate": "use --launcher accelerate, which sets what it takes. By itself accelerate starts one process a "
    "machine with --cpu, and with distributed_type NO or MULTI_CPU. Without GPUs create Accelerator(cpu=True)",
    "deepspeed": "use --launcher deepspeed. The program must call deepspeed.initialize() or init_distributed()",
    "colossalai": "use --launcher colossalai. The program must call colossalai.launch_from_torch()",
}
_ANY = "leave rank and world size to the launcher: init_process_group() without them reads RANK and WORLD_SIZE"


class ProcessGroups:
    """The part of the running phase that is about process groups."""

    def __init__(self, roster: Roster, ending: Ending) -> None:
        self.roster = roster
        self.ending = ending

    @property
    def tool(self) -> str:
        """The launcher of other makers that starts the ranks; empty where there is none."""
        spec = self.roster.spec
        if self.roster.testing or spec.launch.launcher == "direct":
            return ""
        tool = read_tool(spec.launch.command)
        if tool is not None:
            return tool.name
        return spec.launch.launcher.replace("command", "")

    def on_report(self, event: Report, now: float) -> list[Action]:
        """Take a report: a rank is in or through init_process_group, has destroyed its group, or would train alone."""
        rank = self.roster.nodes[event.node].ranks.get(event.rank)
        actions: list[Action] = []
        finding = self._trains_alone(event)
        if finding is not None:
            actions += self._refuse_once(finding, now)
        if rank is None:
            return actions
        leaving = rank.departure.hear(event, now)
        if leaving is not None:
            return [*actions, self.roster.stamp(leaving, event.node, event.t)]
        if event.what == "became":
            rank.became = event.program
            return [*actions, self.roster.stamp(RankBecame(event.rank, event.program), event.node, event.t)]
        if event.what == "init-entered":
            rank.entered = True
            rank.departed_t = None
            self.roster.last_sign_at = now
            return [*actions, self.roster.stamp(RankEntered(event.rank), event.node, event.t)]
        if event.what == "destroyed":
            rank.entered = True
            rank.departed_t = event.t
            rank.departed_at = event.at
            return [*actions, self.roster.stamp(RankDeparted(event.rank, event.at), event.node, event.t)]
        if event.what == "never-joined":
            rank.never_joined = True
        if event.what == "initialised" and rank.initialised_t is None:
            actions += self._initialised(rank, event, now)
        return actions

    def _initialised(self, rank: RankState, event: Report, now: float) -> list[Action]:
        roster = self.roster
        rank.initialised_t = event.t
        roster.last_sign_at = now
        if rank.exit is None:
            rank.state = "initialised"
        roster.note_limit(event.limit)
        actions: list[Action] = [roster.stamp(RankInitialised(event.rank, event.limit), event.node, event.t)]
        times = [r.initialised_t for r in roster.ranks() if r.initialised_t is not None]
        count = len(roster.ranks())
        if roster.initialised_t is None and len(times) == count:
            roster.initialised_t = max(times)
            seconds = round(roster.initialised_t - roster.started, 3)
            actions.append(roster.stamp(AllInitialised(seconds, count), t=roster.initialised_t))
        return actions

    def _trains_alone(self, event: Report) -> Finding | None:
        planned = sum(self.roster.rank_counts.values())
        if self.roster.testing or event.what not in ("alone", "initialised") or not 0 < event.size < planned:
            return None
        if event.what == "alone":
            how = f"the program starts with a world size of {event.size} on {event.node}"
        else:
            how = f"rank {event.rank} on {event.node} made a process group of {event.size}"
        verb = "trains alone" if event.size == 1 else "trains with some of the others alone"
        under = f" under {self.tool}" if self.tool else ""
        message = f"each process {verb}{under}: {how}, and {planned} ranks were planned"
        return self._world_size_finding(message, Where(node=event.node, rank=event.rank))

    def _world_size_finding(self, message: str, where: Where) -> Finding:
        status: Status = "warn" if ID in self.roster.spec.preflight.allow else "fail"
        return Finding(ID, status, message, _FIX.get(self.tool, _ANY), where)

    def _refuse_once(self, finding: Finding, now: float) -> list[Action]:
        """All processes report the same: one finding, and the end of the run unless the finding is a warning."""
        if any(f.id == ID and f.message.startswith("each process") for f in self.roster.findings):
            return []
        actions: list[Action] = [self.roster.add_finding(finding)]
        if finding.status != "warn":
            actions += self.ending.fail(now)
        return actions

    def refuse_never_joined(self, now: float) -> list[Action]:
        """All have ended with 0 and every one has reported that it loaded torch and made no process group.

        A failure under a launcher that is there for process groups, else a warning: ranks may share nothing.
        """
        ranks = self.roster.ranks()
        if self.roster.testing or len(ranks) < 2 or not all(r.never_joined for r in ranks):
            return []
        launcher = self.tool or self.roster.spec.launch.launcher
        message = (
            f"each process trained alone under {launcher}: all {len(ranks)} ended with 0,"
            " and no process group was ever made"
        )
        finding = self._world_size_finding(message, Where())
        if self.tool not in FRAMEWORKS:
            finding = finding._replace(status="warn")
        return self._refuse_once(finding, now)
