"""One launch, from a RunSpec to its result: cluster, run directory, controller, judgement, retries (IO)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
import platform
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from allranks import __version__
from allranks.agent.files import open_left
from allranks.agent.processes import USER_SIGNALS, survive_user_signals
from allranks.cluster import Cluster
from allranks.cluster.nodes import JOINED
from allranks.diagnose.causes import exit_code
from allranks.diagnose.incident import Incident
from allranks.diagnose.recorded import newest
from allranks.diagnose.roles import OWN, RoleEnd, at_fault
from allranks.errors import AllranksError, UsageError
from allranks.exitcodes import CHECK_FAILED, DONE, HANG
from allranks.findings import SURE, Verdict, in_role
from allranks.plan.environment import HandedOver, forwarded, handed_over
from allranks.preflight.check import Check
from allranks.preflight.judge import hardware_checks, of_level
from allranks.protocol.attempts import AttemptEnd
from allranks.protocol.frames import PROTOCOL, RANK_LOG
from allranks.protocol.orders import Environments
from allranks.protocol.run_facts import (
    AttemptStart,
    ControllerAttached,
    Fact,
    LauncherPaused,
    NodesAsked,
    PlainNote,
    RetryDecided,
    RunStart,
    Stamped,
    StepsSeen,
    SuitePassed,
    of_kind,
)
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import (
    NodeEntry,
    ProgramExit,
    ResultDocument,
    RoleResult,
    RunDocument,
    StatusDocument,
    TimeLedger,
    Timing,
    Unfetched,
)
from allranks.runs.nodeledger import OK, OTHER, NodeRecord, add_records, blame, ledger_file, records_of
from allranks.runs.opening import (
    controller_identity,
    node_entry,
    reachable_nodes,
    read_from_here,
    take_control,
    write_nodes,
    write_opening,
)
from allranks.runs.regular import read_end
from allranks.runs.result import least_result, new_run, over_when_interrupted, reopen, write_result
from allranks.runs.timeledger import newest_steps
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.document import from_document
from allranks.settings.ray import name_of
from allranks.settings.runspec import beat_of
from allranks.text import join_words

from .channel import Shipper
from .conducting import conduct, directories_of, status_of_roles
from .controller import Controller
from .gang import Gang
from .history import History, attempts_of
from .links import STOPS
from .passed_signals import CONTROLLER
from .places import RunContext
from .plugins import all_checks
from .policy import Decision
from .questions import Questions
from .resuming import spares_of
from .roles import parts_of
from .roster import Roster
from .states import State, UserSignal
from .tasks import run_loop, start_task
from .transport import NodeReach, TimeLeft

if TYPE_CHECKING:
    from .tested import Tested
    from .working_tree import Archive


LATE = 2.0  # seconds that a controller on a loaded machine may be late with status.json
LAST_LINES = 3  # of a role that did not get ready
LOG_END = 4 << 10  # bytes in which they are looked for
LOGS_SECONDS = 20.0  # for reading the logs of a failed attempt, where the verdict is not sure without them


class Session:
    """A run in the making or in progress. `result` is there after `run`."""

    def __init__(
        self,
        spec: RunSpec,
        cluster: Cluster,
        context: RunContext,
        run: RunDirectory,
        view: View,
        reach: NodeReach,
        adopted: bool = False,
        archive: Archive | None = None,
    ) -> None:
        self.reach = reach
        self.spec = spec
        self.cluster = cluster
        self.context = context
        self.run_dir = run
        self.adopted = adopted
        self.handed_over = False  # to a daemon, which this process has started
        self.verdict: Verdict | None = None
        self.tested: Tested | None = None
        self.history = History()
        self.has_hidden_failure = False  # a script of the last attempt ended with 0, and what it ran had failed
        self.started = time.time()
        self.view = view
        shipper = Shipper(archive) if archive is not None else None
        self.controller = Controller(spec, cluster, context, reach.transport, run, view, self._judge, adopted, shipper)
        self.recording = self.controller.recording
        self.observing = self.controller.observing
        if spec.target.min_nodes is not None:
            self.controller.listed_again = reach.listed_again
        if spec.recovery.audit_data:
            from .auditor import Auditor  # imported late: a run without it needs none of it

            self.observing.auditor = Auditor(spec.recovery.audit_data, run)
        self.others: list[Session] = []  # of the other roles; this one's success ends the run
        self._signals = 0
        self._said_time_left = False
        self._asked_to_stop: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def take_view(self, view: View) -> None:
        """Another view from now on (after the fork of --detach)."""
        self.view = view
        for controller in self.controllers:
            controller.take_view(view)

    @property
    def of_roles(self) -> list[Session]:
        """The session of each role, this one first."""
        return [self, *self.others]

    @property
    def controllers(self) -> list[Controller]:
        """The controller of each role, this one's first."""
        return [session.controller for session in self.of_roles]

    def take_others(self, others: Sequence[Session]) -> None:
        """Conduct the sessions of the other roles of the run, in the order in which they stand in the settings."""
        self.others = list(others)
        if others:
            conduct(self.controllers)

    def run(
        self, on_stop_key: Callable[[Session], None] | None = None, stop_first: str | None = None
    ) -> ResultDocument:
        """Run to the end and return the result, which is empty where another controller has taken the run over.

        `stop_first` ends an adopted run at once. A crash of allranks itself is an end, too: cause `internal-error`.
        """
        try:
            try:
                with over_when_interrupted(self.run_dir):
                    run_loop(lambda: self._main(on_stop_key, stop_first))
            finally:
                survive_user_signals()  # the loop has taken its handlers back
            return self.finish()
        except AllranksError:
            raise  # what a user or a node can mend
        except Exception as error:
            return self._failed_itself(error)

    def resume(self, facts: Sequence[Stamped[Fact]], status: StatusDocument) -> None:
        """Go on from the log of the run, which another controller has written, and its last status.json."""
        roster = self.controller.roster
        began = next((start.t for start in of_kind(facts, RunStart)), self.started)
        self.started = roster.started = began
        now = time.monotonic()
        t = time.time()
        roster.began_at = now - max(0.0, t - began)
        self.controller.gang.resuming.resume(facts, now, t)
        self.recording.resume(facts, self.controller.links.members)
        self.observing.resume(facts, roster.attempt, status)
        self.history.resume(end for end in attempts_of(facts) if end.attempt < roster.attempt)

    def stop_from_afar(self, reason: str) -> None:
        """End the run because a node wants it, from any thread. Every node may: that is never a second signal."""
        self._asked_to_stop = reason
        self._from_any_thread(self._stop_of_a_node, reason)

    def _stop_of_a_node(self, reason: str) -> None:
        self.stop_all(reason, self.spec.limits.stop_grace)
        self._shorten("sigterm")

    def signal_at_node(self, node: str, name: str) -> None:
        """SIGUSR1 or SIGUSR2 came to a node's task, which is not a rank; from any thread."""
        self._from_any_thread(self.pass_signal, name, node)

    def step_ended(self) -> None:
        """Give up all nodes: the engine's processes there have ended, and every way to them; from any thread."""
        for controller in self.controllers:
            self._from_any_thread(controller.links.lose_all)

    def _from_any_thread(self, act: Callable[..., None], *arguments: str) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(act, *arguments)

    def pass_signal(self, name: str, source: str = CONTROLLER) -> None:
        """SIGUSR1 or SIGUSR2 is for the ranks, wherever it came to."""
        for controller in self.controllers:
            if not source or source in controller.links.members:
                controller.feed(UserSignal(name, source))

    async def _main(self, on_stop_key: Callable[[Session], None] | None, stop_first: str | None) -> None:
        loop = self._loop = asyncio.get_running_loop()
        _handle_stops(self.interrupt)
        for name, number in USER_SIGNALS.items():
            loop.add_signal_handler(number, self.pass_signal, name)
        if self.reach.warning_signal is not None:
            loop.add_signal_handler(self.reach.warning_signal, self.end_announced)
        if on_stop_key is not None:
            loop.add_signal_handler(signal.SIGTSTP, on_stop_key, self)
        if stop_first is not None:
            loop.call_soon(self.stop_all, stop_first, self.spec.limits.stop_grace)
        if self._asked_to_stop is not None:  # before there was a loop to tell
            loop.call_soon(self._stop_of_a_node, self._asked_to_stop)
        self._answering = start_task(Questions(self.controllers).serve(self.context.uid))
        ends = await asyncio.gather(*map(self._play, self.of_roles), return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error

    async def _play(self, session: Session) -> None:
        try:
            await session.controller.run()
        except Exception:
            self.stop_all("crash", self.spec.limits.grace)
            raise

    def stop_all(self, reason: str, grace: float) -> None:
        """End all roles with `grace` seconds for their ranks."""
        for controller in self.controllers:
            controller.stop(reason, grace)

    def interrupt(self, reason: str) -> None:
        """Once: orderly, ranks may save. Twice: now."""
        self._signals += 1
        for controller in self.controllers:
            controller.links.beats.stop_grace = 0.0
        self.stop_all(reason, self.spec.limits.stop_grace if self._signals == 1 else 0.0)
        if self._signals == 1:
            self._shorten("sigterm")

    def say_note(self, text: str) -> None:
        """Show and keep a remark."""
        self.controller.note(PlainNote(text))

    def end_announced(self) -> None:
        """End the run in order, once: the engine takes the nodes back soon."""
        self.reach.warned()
        self.stop_all("engine", self.spec.limits.stop_grace)
        self._shorten("engine")

    def _shorten(self, reason: str) -> None:
        """Shorten the grace where the engine ends the nodes sooner; it is asked in a thread, as that may take."""
        loop = asyncio.get_running_loop()

        def shorten(future: asyncio.Future[TimeLeft | None]) -> None:
            left = future.result() if not future.cancelled() and future.exception() is None else None
            asked = self.spec.limits.stop_grace
            if left is None or left.seconds >= asked or self.controller.roster.state is State.OVER:
                return
            if not self._said_time_left:  # every node's task says that the engine ends it
                self._said_time_left = True
                self.say_note(f"ranks have {left.seconds:.0f} s ({left.source}), not the {asked:g} s of --stop-grace")
            self.stop_all(reason, left.seconds)

        loop.run_in_executor(None, self.reach.time_left).add_done_callback(shorten)

    # -- judging -----------------------------------------------------------------------------------

    def _judge(self, gang: Gang) -> Decision:
        roster = gang.roster
        if gang.rendezvous.port_was_taken:
            self.recording.keep(PlainNote(f"port {roster.master_port} was taken: trying another"))
            return Decision("repeat")
        failed = any(end.fact.code != 0 for end in roster.exits) or roster.findings or roster.lost
        if roster.stop_reason or failed:
            self._ask_engine(roster)
        self._audit(gang)
        verdict = None if gang.world.has_regrown else self._verdict(roster)
        if roster.testing:
            return Decision(self._judge_test(roster, verdict))
        if verdict is not None and verdict.confidence < SURE:
            verdict = self._completed(verdict)
        steps = {rank: progress.step for rank, progress in self.observing.progress.by_rank().items()}
        against = self._against_retry()
        resumed = self.observing.progress.resumed()
        decision, self.verdict = self.history.add(gang, verdict, steps, time.monotonic(), against, resumed)
        self.controller.note(self.history.attempts[-1])
        if decision.kind == "retry" and self.verdict is not None:
            self.controller.note(RetryDecided(decision.reason, self.verdict))
        return decision

    def _verdict(self, roster: Roster) -> Verdict | None:
        from allranks.diagnose.verdict import judge  # imported late: an attempt has to be over
        from allranks.runs.recorded_incident import AttemptNodes, make_incident

        known = Incident(
            command=self.spec.launch.command,
            lease=self.spec.limits.lease,
            logins=roster.logins,
            is_joined=roster.cluster.source == JOINED,
            withheld=roster.context.handed_over.not_forwarded,
        )
        nodes = AttemptNodes(
            roster.attempt,
            tuple(roster.nodes),
            {node.name: node.index for node in roster.everyone.values()},
            roster.has_one_process,
        )
        incident = make_incident(self.run_dir, self.recording.attempt_facts.facts, nodes, known)
        self.has_hidden_failure = any(end.hides for end in incident.exits)
        return judge(incident)

    def _against_retry(self) -> str:
        if self.adopted and not self.controller.has_launch:
            return "this allranks took the run over, and no agent has kept what the ranks were started with"
        if self.adopted and self.controller.lacks_tree():
            return "a node needs the working tree of --sync, and the controller that had it has ended"
        return self.reach.against_retry()

    def _completed(self, verdict: Verdict) -> Verdict:
        # Imported late: 0.3 s for the tables of log diagnosis, which most runs do not need.
        from allranks.runs.child import OutOfTime, WorkFailed, in_child
        from allranks.runs.judged import complete

        try:
            return in_child(partial(complete, verdict, self.run_dir), LOGS_SECONDS)
        except (OutOfTime, WorkFailed, AllranksError) as error:
            self.say_note(
                f"the logs were not read for the verdict ({error})\nhint: allranks diagnose {self.run_dir.name}"
            )
            return verdict

    def _ask_engine(self, roster: Roster) -> None:
        """Keep why the engine took the nodes back, where it did."""
        reason = self.reach.finding(bool(roster.stop_reason))
        if reason is not None:
            roster.findings.append(reason)
            self.recording.keep(reason)  # so that `diagnose` knows it too

    def _audit(self, gang: Gang) -> None:
        roster = gang.roster
        auditor = self.observing.auditor
        if auditor is None or roster.testing or not roster.exits:
            return
        from allranks.data.case import CHECK as OF_DATA  # imported late: only an audit needs it

        findings, fresh = auditor.conclude(roster.layout(), roster.attempt)
        for one in gang.running.audit_findings(fresh):
            self.controller.note(one)
        rest = [one for one in roster.findings if one.check != OF_DATA]
        roster.findings = [*rest, *gang.running.audit_findings(findings)]

    def _judge_test(self, roster: Roster, verdict: Verdict | None) -> str:
        """After the collective tests: the program follows where they passed; they are not repeated."""
        from .tested import judge_test  # imported late: a run without tests needs none of it

        quick = self.spec.tests.test == "quick"
        self.tested = judge_test(roster, self.run_dir, verdict, quick)
        self.verdict = self.tested.verdict
        if roster.stop_reason:
            outcome = "stopped"
        elif self.tested.exit == DONE:
            outcome = "tested"
        else:
            outcome = "failed"
        self.controller.note(AttemptEnd(roster.attempt, outcome))
        if outcome != "tested" or not quick:
            return "finish"
        seconds = roster.attempt_seconds(time.monotonic())
        self.controller.note(SuitePassed(len(roster.ranks()), seconds))
        return "train"

    def finish(self) -> ResultDocument:
        """Write the result down and return it; where another controller has taken the run over it writes the result."""
        if self.controller.replaced:
            return ResultDocument(self.context.run)
        ended_t = time.time()
        result = result_of_roles(self.of_roles, ended_t)
        stopped = bool(self._user_stop)
        refused = self.reach.refuse_requeue() if result.no_requeue and not stopped else ""
        if refused:
            self.controller.note(PlainNote(f"{refused}: {result.no_requeue}"))
        status = status_of_roles(self.controllers)
        written = write_result(self.run_dir, result, stopped, status, ended_t)
        if not self.cluster.is_virtual:
            self._remember_nodes(result)
        return written

    @property
    def _user_stop(self) -> str | None:
        reason = self.controller.roster.stop_reason
        return None if reason in OWN else reason

    def own_result(self, ended_t: float) -> ResultDocument:
        """Give the result of this role, which ends at `ended_t` (unix seconds)."""
        gang = self.controller.gang
        roster = gang.roster
        program_failed = roster.program_failed or self.has_hidden_failure
        code = exit_code(self.verdict, roster.stop_reason, program_failed)
        if roster.refused_by_check:
            code = CHECK_FAILED
        if gang.hang_watch.hang is not None and self.verdict is not None and not roster.stop_reason:
            code = HANG
        if roster.testing and self.tested is not None and not roster.refused_by_check:
            code = self.tested.exit
        if self.history.hopeless and self.verdict is not None and not roster.stop_reason:
            code = self.spec.recovery.no_requeue_code or code
        result = self._result(code, ended_t)
        if roster.testing and self.tested is not None:
            result = self.tested.add_to(result)
        return result

    @property
    def role_end(self) -> RoleEnd:
        """How this role ended."""
        roster = self.controller.roster
        was_ready = self.controller.gang.ready_test.was_ready
        return RoleEnd(self.context.role, self.verdict, roster.failed_t, roster.stop_reason, was_ready)

    def role_result(self, results: Mapping[str, ResultDocument]) -> RoleResult:
        """Say how this role ended."""
        roster = self.controller.roster
        own = results[self.context.role.name]
        verdict = own.verdict
        cause = ""
        if self.role_end.was_ended or self._user_stop:
            outcome = "stopped"
        elif verdict is None:
            outcome = "done"
        else:
            outcome = "failed"
            cause = verdict.cause or ""
        ledger = own.time_ledger or TimeLedger()
        return RoleResult(outcome, tuple(roster.nodes), roster.world_size, tuple(self.history.attempts), cause, ledger)

    def _remember_nodes(self, result: ResultDocument) -> None:
        seen = {
            node.name: (node.hostname, node.plan_facts.identity)
            for session in self.of_roles
            for node in session.controller.roster.everyone.values()
            if node.hostname or node.gone
        }
        verdicts = [attempt.verdict for attempt in result.attempts if attempt.verdict is not None]
        if result.verdict is not None:
            verdicts.append(result.verdict)
        blamed = blame(verdicts, result.findings, hardware_checks(all_checks().values()))
        outcome = OK if result.exit == DONE and not self._user_stop else OTHER
        kind = "test" if self.controller.roster.testing else "run"
        line = NodeRecord(round(time.time(), 1), self.context.run, kind, "", outcome=outcome)
        add_records(ledger_file(os.environ), records_of(seen, line, blamed))

    def _result(self, code: int, ended_t: float) -> ResultDocument:
        roster = self.controller.roster
        ledger = self.recording.timekeeper.ledger(ended_t, self.observing.progress.span.seen)
        left = {n.name: n.left for n in roster.everyone.values() if n.left}
        dropped = {node: {str(r): n for r, n in ranks.items()} for node, ranks in self.recording.dropped.items()}
        return ResultDocument(
            self.context.run,
            str(self.run_dir.path) if self.run_dir.path.is_dir() else "",
            code,
            self._program_exit(roster),
            self.verdict,
            tuple(roster.findings),
            tuple(self.history.attempts),
            self._timing(roster),
            left,
            self._unfetched(roster),
            dropped,
            self.recording.undecodable.counts,
            self._outputs(roster),
            ledger.goodput,
            ledger,
            no_requeue=self.history.hopeless,
        )

    def _failed_itself(self, error: Exception) -> ResultDocument:
        """Write the result of a run that a defect of allranks has ended; its traceback is evidence.

        The state of the run may be what is broken, so each part of it is left out where it can't be read."""
        from allranks.runs.result import internal_verdict, save_traceback  # imported late: it should never be needed

        save_traceback(self.run_dir, error)
        self.verdict = internal_verdict(error, self.run_dir.name)
        code = exit_code(self.verdict, None, False)
        status: StatusDocument | None = None
        ended_t = time.time()
        try:
            result = self._result(code, ended_t)
            status = self.controller.status()
        except Exception:
            result = least_result(self.run_dir, code, self.verdict)
        return write_result(self.run_dir, result, False, status, ended_t)

    def _program_exit(self, roster: Roster) -> ProgramExit:
        culprit = 0
        if self.verdict is not None and self.verdict.finding.where.rank is not None:
            culprit = self.verdict.finding.where.rank
        end = next((end for end in roster.exits if end.fact.rank == culprit), None)
        if end is None:
            return ProgramExit()
        program_code = roster.program_code(end)
        if program_code is not None:
            return ProgramExit(culprit, program_code)
        return ProgramExit(culprit, end.fact.code, end.fact.signal)

    def _timing(self, roster: Roster) -> Timing:
        timing = Timing(round(time.monotonic() - roster.began_at, 3))
        if roster.initialised_t is not None:
            timing = timing._replace(initialised=round(roster.initialised_t - roster.started, 3))
        first_step_at = self.observing.progress.first_step_at
        if first_step_at is not None:
            timing = timing._replace(first_step=round(first_step_at - roster.began_at, 3))
        return timing

    def _unfetched(self, roster: Roster) -> dict[str, Unfetched]:
        unfetched = {}
        members = self.controller.links.members
        for node in roster.everyone.values():
            if node.ranks and node.node_dir and self.recording.is_unfetched(members[node.name]):
                sizes = self.recording.logs.sizes(node.index, node.name)
                unfetched[node.name] = Unfetched(node.node_dir, sizes)
        return unfetched

    def _outputs(self, roster: Roster) -> dict[str, str]:
        outputs = {}
        for node in roster.everyone.values():
            here = self.context.run_outputs if node.index in self.context.local_nodes else None
            place = node.outputs or self.spec.places.output_dir or here
            if place is not None:
                outputs[node.name] = place
        return outputs


# -- several sessions -------------------------------------------------------------------------------------


async def run_round(sessions: Sequence[Session]) -> list[ResultDocument]:
    """Run disjoint gangs side by side (`allranks test --suite staged`) and give their results.

    Ctrl-C and SIGTERM end all of them.
    """

    def interrupt(reason: str) -> None:
        for session in sessions:
            session.interrupt(reason)

    _handle_stops(interrupt)
    await asyncio.gather(*(session.controller.run() for session in sessions))
    return [session.finish() for session in sessions]


def _handle_stops(interrupt: Callable[[str], None]) -> None:
    for number, reason in STOPS.items():
        asyncio.get_running_loop().add_signal_handler(number, interrupt, reason)


def result_of_roles(sessions: Sequence[Session], ended_t: float) -> ResultDocument:
    """Make the result of a run of the results of its roles: the role that failed first says why it failed."""
    results = {session.context.role.name: session.own_result(ended_t) for session in sessions}
    first = results[sessions[0].context.role.name]
    if len(sessions) == 1:
        return first
    culprit = at_fault([session.role_end for session in sessions])
    merged = first
    if culprit is not None and culprit.verdict is not None:
        name = culprit.role.name
        own = results[name]
        printed = next(_printed_last(session) for session in sessions if session.context.role is culprit.role)
        part = name_of(culprit.role, culprit.verdict.finding.where.rank)
        verdict = in_role(culprit.verdict, name, printed, part)
        merged = dataclasses.replace(
            first, exit=own.exit, program_exit=own.program_exit, verdict=verdict, no_requeue=own.no_requeue
        )
    elif first.verdict is None and sessions[0].role_end.was_ended:
        merged = dataclasses.replace(first, exit=DONE)
    every = list(results.values())
    return dataclasses.replace(
        merged,
        findings=tuple(finding for result in every for finding in result.findings),
        left={node: left for result in every for node, left in result.left.items()},
        unfetched={node: one for result in every for node, one in result.unfetched.items()},
        dropped={node: one for result in every for node, one in result.dropped.items()},
        undecodable={source: count for result in every for source, count in result.undecodable.items()},
        outputs={node: one for result in every for node, one in result.outputs.items()},
        roles={session.context.role.name: session.role_result(results) for session in sessions},
    )


def _printed_last(session: Session) -> list[str]:
    verdict = session.verdict
    if verdict is None or verdict.cause != "role-not-ready":
        return []
    node = session.controller.roster.nodes.get(verdict.finding.where.node or "")
    if node is None:
        return []
    lines: list[str] = []
    for rank in node.ranks:
        log = session.run_dir.log_path(node.index, node.name, RANK_LOG, rank, session.controller.roster.attempt)
        lines += read_end(log, LOG_END).splitlines()[-LAST_LINES:]
    return [line for line in lines[-LAST_LINES:] if line.strip()]


# -- making sessions -----------------------------------------------------------------------------------


def create(
    spec: RunSpec,
    cluster: Cluster,
    reach: NodeReach,
    environ: Mapping[str, str],
    cwd: str,
    view_for: Callable[[], View],
    expected_world_size: int | None = None,
    dead: tuple[tuple[str, str], ...] = (),
) -> Session:
    """Make the run directory and a session for a new run; `reach` may have a run directory for it already.

    `expected_world_size` is the caller's WORLD_SIZE, `dead` are pairs of nodes that --suite pairs leaves out."""
    parts = parts_of(spec, cluster)
    archive = _pack(spec, cwd) if spec.launch.sync else None
    again = reach.run_directory(spec.places.runs_dir)
    with new_run(spec.places, time.time(), reach.run_suffix, again) as run:
        checks = tuple(of_level(all_checks().values(), "quick")) if spec.preflight.check else ()
        context = make_context(spec, cluster, environ, cwd, names_of(run), checks)
        context = dataclasses.replace(
            context,
            expected_world_size=expected_world_size,
            tree=archive.tree if archive is not None else None,
            dead=dead,
            keeps_launch=reach.keeps_launch and not spec.launch.roles,
        )
        known = RunDocument(
            uid=context.uid,
            started=time.time(),
            nodes=tuple(entry for part in parts for entry in node_entries(part.cluster, part.role.name)),
            source=cluster.source,
            workdir=context.workdir,
            versions={"python": platform.python_version()},
            controller=controller_identity(),
            slurm=reach.document,
            withheld=context.handed_over.not_forwarded,
        )
        write_opening(run, spec, known)
        if again is not None:
            keep_newest_steps(run)
        if reach.awaited_since is not None:
            run.append(Stamped("", reach.awaited_since, None, NodesAsked(cluster.source)))
        run.append(Stamped("", time.time(), None, RunStart(run.name, context.uid)))
        view = view_for()
        session, *others = (
            Session(part.spec, part.cluster, part.context(context), own, view, reach, archive=archive)
            for part, own in directories_of(parts, run)
        )
        session.take_others(others)
        facts = run.read_facts()[0]
        session.recording.remember(facts)
        if again is not None:
            continue_run(session, facts)
        return session


def continue_run(session: Session, facts: Sequence[Stamped[Fact]]) -> None:
    """Go on with a run that an engine starts again: its attempts are kept, its result is open again."""
    reopen(session.run_dir)
    session.history.attempts += attempts_of(facts)
    numbers = [start.attempt or 0 for start in of_kind(facts, AttemptStart)]
    attempt = max(numbers, default=-1) + 1
    session.observing.remember_former(facts, attempt)
    session.controller.roster.attempt = attempt


def keep_newest_steps(run: RunDirectory) -> None:
    """Write down how far an attempt came whose controller died: status.json has it, and is about to be replaced."""
    last = newest(of_kind(run.read_facts()[0], StepsSeen))
    status = run.read_status()
    if last is None or (last.attempt or 0) != status.attempt:
        return
    steps = newest_steps(last.fact, status)
    if steps != last.fact:
        run.append(Stamped("", time.time(), last.attempt or 0, steps))


def _pack(spec: RunSpec, cwd: str) -> Archive:
    from .working_tree import TREE, pack_tree, received  # imported late: a run without --sync needs none of it

    tree = os.environ.pop(TREE, "")
    if tree:
        return received(tree, os.environ["ALLRANKS_RUN_DIR"])
    return pack_tree(spec, cwd)


def names_of(run: RunDirectory) -> RunContext:
    """Make what only a run that starts has: its identity, a secret, the directory of its outputs."""
    uid = f"{run.name}-{secrets.token_hex(3)}"
    return RunContext(run.name, uid, secrets.token_hex(16), "", str(run.outputs.absolute()))


def make_context(
    spec: RunSpec, cluster: Cluster, environ: Mapping[str, str], cwd: str, names: RunContext, checks: tuple[Check, ...]
) -> RunContext:
    """Add what this machine and this moment know: names, secrets of the run, the caller's environment."""
    inherit = all(n.is_local for n in cluster.everyone)
    named = {name: environ[name] for name in spec.launch.forward if name in environ}
    variables = named
    handed = HandedOver()
    if not inherit:
        variables = {**forwarded(environ, spec.launch.forward), **named}
        handed = handed_over(spec, environ, variables)
    return dataclasses.replace(
        names,
        workdir=cwd,
        local_nodes=frozenset(n.index for n in cluster.everyone if n.is_local),
        forwarded=variables,
        handed_over=handed,
        environments=environments(environ),
        checks=checks,
    )


def environments(environ: Mapping[str, str]) -> Environments:
    """Return where the training interpreter may be.

    Conda's `base` is active in every login of many people, and says less than the environment allranks runs from.
    """
    own = _own_environment()
    is_base = own is not None and environ.get("CONDA_DEFAULT_ENV") == "base"
    return Environments(environ.get("VIRTUAL_ENV"), None if is_base else environ.get("CONDA_PREFIX"), own)


def _own_environment() -> str | None:
    """Return the virtual environment allranks runs from, if torch is in it: `.venv/bin/allranks` without activate.

    An environment made for allranks alone (pipx) has no torch and is not taken.
    """
    in_venv = sys.prefix != sys.base_prefix and importlib.util.find_spec("torch") is not None
    if not in_venv:
        return None
    return sys.prefix


def node_entries(cluster: Cluster, role: str) -> list[NodeEntry]:
    """Describe the nodes as run.json has them, spares last."""
    entries = [node_entry(node, node.index if role else rank, role) for rank, node in enumerate(cluster.nodes)]
    return entries + [node_entry(node, None, role) for node in cluster.spares]


def adopt(run: RunDirectory, view: View, reach_for: Callable[[RunSpec, Cluster], NodeReach]) -> Session:
    """Make a session for a run whose controller has ended: its agents are looked for and taken over."""
    document = read_from_here(run)
    _refuse_another_protocol(run.name, document.versions)
    facts = run.read_facts()[0]
    gang = document.gang
    nodes = reachable_nodes(gang)
    if document.spec.get("roles"):
        raise UsageError(
            f"{run.name} has several roles, and another controller cannot take such a run over. Its ranks end with "
            "their lease"
        )
    missing = [name for name in ("nodes", "spec", "uid", "workdir") if not getattr(document, name)]
    if missing or not nodes or len(nodes) < len(gang):
        lacking = join_words(missing or ["addresses of nodes"])
        raise UsageError(
            f"{run.path}/run.json is damaged: it has no {lacking}, so agents of this run cannot be looked for. "
            "They end by themselves when their lease is over"
        )
    others = {entry.name for entry in document.nodes} - {entry.name for entry in gang}
    waiting = spares_of(facts, others)
    spares = reachable_nodes(entry for entry in document.nodes if entry.name in waiting)
    cluster = Cluster(tuple(nodes), document.source or "run.json", tuple(spares))
    spec = from_document(document.spec)
    context = RunContext(
        run=run.name,
        uid=document.uid,
        token="",
        workdir=document.workdir or "",
        run_outputs=str(run.outputs.absolute()),
        local_nodes=frozenset(n.index for n in cluster.everyone if n.is_local),
    )
    reach = reach_for(spec, cluster)
    context = dataclasses.replace(context, keeps_launch=reach.keeps_launch)
    session = Session(spec, cluster, context, run, view, reach, adopted=True)
    for entry in gang:
        state = session.controller.roster.nodes[entry.name]
        state.address = entry.address
        state.incarnation = entry.life or 0
    status = run.read_status()
    session.resume(facts, status)
    write_nodes(run, document.nodes)
    take_control(run)
    now = time.time()
    run.append(Stamped("", now, None, ControllerAttached(os.getpid())))
    alone = now - status.t
    if status.t and alone > beat_of(spec.limits.lease) + LATE:  # a controller that lives writes it once a beat
        session.controller.feed(LauncherPaused(alone, slept=False, ended=True), t=now)
    return session


def _refuse_another_protocol(name: str, versions: Mapping[str, str]) -> None:
    theirs = versions.get("protocol", "1")  # 0.1.0 did not say it
    if theirs != str(PROTOCOL):
        raise UsageError(
            f"{name} was started by allranks {versions.get('allranks', '')}, whose agents speak protocol {theirs}. "
            f"This allranks ({__version__}) speaks protocol {PROTOCOL}, and changes nothing of the run\n"
            f"hint: pip install allranks=={versions.get('allranks', '')}"
        )


def detach_stdio(log: Path) -> None:
    """Leaves the terminal: own session, output into the run directory's controller.log."""
    with contextlib.suppress(OSError):
        os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    out = open_left(str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout.flush()
    sys.stderr.flush()
    for target, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, target)
