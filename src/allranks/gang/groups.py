"""Groups: which ranks have come through init_process_group, and with how many others. Pure.

A launcher can start processes that know nothing of each other: each trains alone on all of the data, and all end
with 0. So a process group that is smaller than planned is a failure, whoever the launcher is; so is a run under a
launcher of process groups in which there never was one.
"""

from __future__ import annotations

import math
import shlex

from allranks.diagnose.words import LAX_SCRIPT
from allranks.findings import Finding, Status, Where
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import ExitMessage, WorldMessage
from allranks.protocol.run_facts import (
    AllInitialised,
    Fact,
    RankBecame,
    RankDeparted,
    RankEntered,
    RankInitialised,
    Stamped,
)
from allranks.settings.command_line import as_options
from allranks.settings.ray import LAUNCHERS as OF_RAY
from allranks.settings.secrets import redact_argv, redact_text
from allranks.settings.tools import FRAMEWORKS, is_program, read_tool
from allranks.text import count_of, join_words, one_line

from .ending import Ending
from .members import RankState
from .roster import Roster
from .states import Action

ID = "world-size-mismatch"
APART = "nodes-train-apart"
SOON = 15.0  # seconds in which no training has come to its end
APART_FOR = 5.0  # seconds that worlds of two nodes live together: a check of one node before the training is shorter
_FIX = {
    "accelerate": "use --launcher accelerate, which sets what it takes. By itself accelerate starts one process a "
    "machine with --cpu, and with distributed_type NO or MULTI_CPU. Without GPUs create Accelerator(cpu=True)",
    "deepspeed": "use --launcher deepspeed. The program must call deepspeed.initialize() or init_distributed()",
    "colossalai": "use --launcher colossalai. The program must call colossalai.launch_from_torch()",
}
_ANY = "leave rank and world size to the launcher: init_process_group() without them reads RANK and WORLD_SIZE"
_OF_PROGRAM = (
    "the program starts its own processes, and their world is that of one node. Take torch.multiprocessing.spawn out: "
    "allranks starts a process for each rank, and init_process_group() without rank and world size reads them. Or "
    "count all nodes in, with $GROUP_RANK, $GROUP_WORLD_SIZE, $MASTER_ADDR and $MASTER_PORT."
)
_MEANT = f"where the ranks share nothing, or another library joins them, use --allow {ID}"


class ProcessGroups:
    """The part of the running phase that is about process groups."""

    def __init__(self, roster: Roster, ending: Ending) -> None:
        self.roster = roster
        self.ending = ending
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self._worlds: dict[tuple[str, int], Stamped[WorldMessage]] = {}  # by node and number
        self._whole_at: dict[tuple[str, int], float] = {}  # when a world was first seen whole on its node
        self._awaited: list[RankState] | None = None  # ranks that had not initialised when they were looked at

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

    def on_report(self, stamped: Stamped[ReportMessage], now: float) -> list[Action]:
        """Take a report: a rank is in or through init_process_group, has destroyed its group, or would train alone."""
        report = stamped.fact
        rank = self.roster.nodes[stamped.node].ranks.get(report.rank)
        actions: list[Action] = []
        finding = self._trains_alone(stamped)
        if finding is not None:
            actions += self._refuse_once(finding, now)
        if rank is None:
            return actions
        fact: Fact | None = rank.departure.hear(stamped, now)
        match report.event:
            case "became":
                fact = RankBecame(report.rank, report.program)
            case "init-entered":
                rank.entered = True
                self.roster.last_sign_at = now
                fact = RankEntered(report.rank)
            case "destroyed":
                rank.entered = True
                fact = RankDeparted(report.rank, report.at)
            case "never-joined":
                rank.never_joined = True
            case "initialised" if rank.initialised_t is None:
                actions += self._initialised(rank, stamped, now)
        return actions if fact is None else [*actions, self.roster.stamp(fact, stamped.node, stamped.t)]

    def on_world(self, stamped: Stamped[WorldMessage], now: float) -> list[Action]:
        """Keep a world that another launcher has made below a node's ranks."""
        key = (stamped.node, stamped.fact.number)
        is_of_ray = self.roster.spec.launch.launcher in OF_RAY  # its programs have several worlds side by side
        if stamped.fact.attempt == self.roster.attempt and not is_of_ray:
            self._worlds[key] = stamped
            if _is_whole(stamped.fact):
                self._whole_at.setdefault(key, now)
        return []

    def on_tick(self, now: float) -> list[Action]:
        """Refuse worlds that live on two nodes side by side for some seconds, each without the other.

        A warning where the program of a rank may still make the world across the nodes, after what it has started.
        """
        lasting = [self._worlds[key] for key, since in self._whole_at.items() if now - since >= APART_FOR]
        living = [world for world in lasting if world.fact.lives]
        certain = [world for world in living if world.fact.is_all]
        return self._refuse_apart(certain, "trains", now) or self._refuse_apart(living, "may train", now)

    def judge_end(self, now: float) -> list[Action]:
        """All have ended with 0: refuse nodes that have trained apart, and ranks that never had a process group."""
        apart = self._refuse_apart(list(self._worlds.values()), "has trained", now)
        refused = apart or self._refuse_background(now) or self.refuse_never_joined(now) or self._doubt_one_world()
        return [*self._doubt_memory(), *refused]

    def _doubt_memory(self) -> list[Action]:
        """Warn where a script ended with 0 and the kernel had killed something: a pipe hides how the training ends.

        The kernel's counter is the machine's: it may have been another's process."""
        roster = self.roster
        killed = {end.node: end.fact.oom_kills for end in roster.exits if end.fact.oom_kills}
        if roster.testing or not killed or not is_program(roster.spec.launch.command):
            return []
        node, count = next(iter(killed.items()))
        ended = count_of(count, "process", "processes")
        message = f"the kernel ended {ended} on {node} for lack of memory during the run"
        remedy = f"if it was the training, the command has hidden it and ended with code 0: {LAX_SCRIPT}"
        return [roster.add_finding(Finding("host-out-of-memory", "warn", message, remedy, Where(node=node)))]

    def _refuse_background(self, now: float) -> list[Action]:
        """Shells that ended with 0 had left programs running, which end with them: the training, where that was soon.

        Later it may be something that was to run beside the training, unless a world lives on there."""
        roster = self.roster
        ends = [stamped for stamped in roster.exits if stamped.fact.background]
        nodes = {end.node for end in ends}
        lives_on = any(world.fact.lives for world in self._worlds.values() if world.node in nodes)
        if not ends or roster.testing or (self._is_one_world and not lives_on):
            return []
        first = ends[0]
        is_soon = len(ends) == len(roster.exits) and all(self._lived(end) < SOON for end in ends)
        is_training = is_soon or lives_on
        message = (
            f"the command of rank {first.fact.rank} on {first.node} ended with code 0 and left"
            f" `{one_line(redact_text(first.fact.background[0]), 200)}` in the background, which was ended with it"
        )
        remedy = (
            "start the training in the foreground: leave out &, nohup and setsid. `allranks run --detach` needs no"
            " terminal and keeps the output"
        )
        where = Where(node=first.node, rank=first.fact.rank)
        finding = Finding("rank-exited-early", "fail" if is_training else "warn", message, remedy, where)
        return self._report(finding, now)

    def _lived(self, end: Stamped[ExitMessage]) -> float:
        started_t = self.roster.nodes[end.node].ranks[end.fact.rank].started_t
        return math.inf if started_t is None else end.t - started_t

    @property
    def _is_one_world(self) -> bool:
        """Whether the run's own world was made, or one that may be on several nodes."""
        joined = any(r.entered or r.initialised_t is not None for r in self.roster.ranks())
        return joined or any(not _is_whole(world.fact) for world in self._worlds.values())

    def _doubt_one_world(self) -> list[Action]:
        roster = self.roster
        silent = not any(r.never_joined for r in roster.ranks())
        meant = ID in roster.spec.preflight.allow or roster.spec.launch.launcher in OF_RAY or not roster.role.is_plain
        if roster.testing or meant or len(roster.nodes) < 2 or not silent or self._is_one_world:
            return []
        message = f"no process group of torch was seen: {len(roster.nodes)} nodes may each have worked alone"
        return [roster.add_finding(Finding(ID, "warn", message, _MEANT))]

    def _refuse_apart(self, seen: list[Stamped[WorldMessage]], verb: str, now: float) -> list[Action]:
        worlds = {world.node: world.fact for world in seen}
        by_node = {node: worlds[node] for node in self.roster.nodes if node in worlds}
        if self.roster.testing or len(by_node) < 2 or self._is_one_world:
            return []
        allowed = APART in self.roster.spec.preflight.allow
        status: Status = "warn" if allowed or verb == "may train" else "fail"
        if any(f.id == APART and (status == "warn" or f.status == "fail") for f in self.roster.findings):
            return []
        sizes = {f"{world.size} ranks" if world.size > 1 else "one rank" for world in by_node.values()}
        own = f"a world of {sizes.pop()}" if len(sizes) == 1 else "a world"
        message = (
            f"each node {verb} on its own: {join_words(list(by_node), limit=5)} have each {own},"
            " and no world across the nodes was made"
        )
        finding = Finding(APART, status, message, self._instead(next(iter(by_node.values()))))
        return self._report(finding, now)

    def _instead(self, world: WorldMessage) -> str:
        """Say what to type: the launcher without the words before it, else the program of the ranks."""
        if world.is_own:
            return f"{_OF_PROGRAM} Where it is meant, use --allow {APART}"
        spec = self.roster.spec
        words = spec.launch.command
        command = next((words[at:] for at in range(len(words)) if read_tool(words[at:])), ())
        nproc = spec.launch.nproc
        launcher = "direct"
        if tool := read_tool(command):
            launcher = tool.name
        elif world.program:
            command = tuple(world.program.split(" "))
            nproc = world.size
        shown = tuple(redact_argv(command)) or ("train.py",)
        changed = spec.changed(command=shown, nproc=nproc, launcher=launcher)
        line = shlex.join(["allranks", "run", *as_options(changed, "run", without=("launcher",))]).replace(" -- ", " ")
        return (
            f"let allranks start the ranks, with the program's own options behind it: `{line}`. A script gives its"
            " launcher $NNODES, $NODE_RANK, $NPROC_PER_NODE, $MASTER_ADDR and $MASTER_PORT."
            f" Where it is meant, use --allow {APART}"
        )

    def _initialised(self, rank: RankState, stamped: Stamped[ReportMessage], now: float) -> list[Action]:
        roster = self.roster
        rank.initialise(stamped.t)
        roster.last_sign_at = now
        roster.note_limit(stamped.fact.limit)
        through = RankInitialised(stamped.fact.rank, stamped.fact.limit)
        actions: list[Action] = [roster.stamp(through, stamped.node, stamped.t)]
        if roster.initialised_t is None and self._all_have_initialised():
            times = [r.initialised_t for r in roster.ranks() if r.initialised_t is not None]
            roster.initialised_t = max(times)
            seconds = round(roster.initialised_t - roster.started, 3)
            actions.append(roster.stamp(AllInitialised(seconds, len(times)), t=roster.initialised_t))
        return actions

    def _all_have_initialised(self) -> bool:
        """Whether no rank is awaited any more. All reports together look at each rank once."""
        if self._awaited is None:
            self._awaited = self.roster.ranks()
        while self._awaited and self._awaited[-1].initialised_t is not None:
            self._awaited.pop()
        return not self._awaited

    def _trains_alone(self, stamped: Stamped[ReportMessage]) -> Finding | None:
        report = stamped.fact
        size = report.world_size or 0
        if self.roster.testing or self.roster.plan is None or report.event not in ("alone", "initialised"):
            return None
        planned = self.roster.plan.world_size
        if not 0 < size < planned:
            return None
        if report.event == "alone":
            how = f"the program starts with a world size of {size} on {stamped.node}"
        else:
            how = f"rank {report.rank} on {stamped.node} made a process group of {size}"
        verb = "trains alone" if size == 1 else "trains with some of the others alone"
        under = f" under {self.tool}" if self.tool else ""
        message = f"each process {verb}{under}: {how}, and {planned} ranks were planned"
        return self._world_size_finding(message, Where(node=stamped.node, rank=report.rank))

    def _world_size_finding(self, message: str, where: Where) -> Finding:
        status: Status = "warn" if ID in self.roster.spec.preflight.allow else "fail"
        return Finding(ID, status, message, _FIX.get(self.tool, _ANY), where)

    def _refuse_once(self, finding: Finding, now: float) -> list[Action]:
        """All processes report the same: one finding, and the end of the run unless the finding is a warning."""
        if any(f.id == ID and f.message.startswith("each process") for f in self.roster.findings):
            return []
        return self._report(finding, now)

    def _report(self, finding: Finding, now: float) -> list[Action]:
        """Keep a finding, and end the run unless it is a warning."""
        if finding.status == "warn":
            return [self.roster.add_finding(finding)]
        return self.ending.refuse([finding], now)

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


def _is_whole(world: WorldMessage) -> bool:
    return world.here == world.size
