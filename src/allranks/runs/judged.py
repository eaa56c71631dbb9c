"""The verdict on a run directory, judged again from its files.

A newer allranks so judges an older run by its own rules. The run's own conclusion stands where the files tell less than
the run knew: events that a full disk has swallowed, collective tests (their rows were judged).
"""

from __future__ import annotations

import time
from pathlib import Path

from allranks.diagnose.causes import CAUSES
from allranks.diagnose.hangs.compared import UNLIKE_CALLS, UNLIKE_SHAPES
from allranks.diagnose.incident import Incident
from allranks.diagnose.roles import RoleEnd, at_fault
from allranks.diagnose.verdict import judge, judge_logs
from allranks.diagnose.words import controller_ended, utc
from allranks.findings import Finding, Verdict, in_role
from allranks.protocol.codec import fitting
from allranks.protocol.frames import DUMP, FLIGHT
from allranks.protocol.run_facts import RoleReady, SuitePassed, of_kind
from allranks.settings.ray import name_of
from allranks.settings.runspec import Role

from .brief import lease_end
from .directory import RunDirectory, attempt_folder, node_folder
from .documents import GOING_ON
from .logdiagnosis import find_logs, read_logs
from .recorded_incident import read_incident, role_of

WITHOUT_FAILURE = {
    "done": "{} is healthy: it ended well, and has no verdict",
    "stopped": "{} was stopped: it has no verdict",
}
HEALTHY = "{} is healthy so far: it is {}, and no rank, node or log line tells of a failure"
AT_ONCE = 256 << 20  # bytes of logs that the end of a run reads for a verdict that is not sure
NOTHING = Incident()


def judge_run(run: RunDirectory) -> Verdict:
    """Give the verdict on the last attempt, completed from all of its logs, and from the recorders where it hung.

    A run that is not over is judged from its logs too. One that ended well, was stopped, or goes on without a sign of
    a failure has no cause: `cause` is null, `status` is ok. Of several roles the one at fault is judged.
    """
    document = run.read_run()
    roles = document.roles
    if not roles:
        return _judge(run)
    ends = [_end_of(run if role is roles[0] else run.of_role(role.name), role) for role in roles]
    culprit = at_fault(ends)
    if culprit is None or culprit.verdict is None:
        return _judge(run)
    own = run if culprit.role is roles[0] else run.of_role(culprit.role.name)
    verdict = _judge(own)
    return in_role(verdict, culprit.role.name, part=name_of(culprit.role, verdict.finding.where.rank))


def _end_of(run: RunDirectory, role: Role) -> RoleEnd:
    """Read how a role ended."""
    facts = run.read_facts()[0]
    incident = read_incident(run) or NOTHING
    was_ready = any(of_kind(facts, RoleReady))
    return RoleEnd(role, judge(incident), incident.detected_t, incident.stop_reason, was_ready)


def _judge(run: RunDirectory) -> Verdict:
    document = run.read_run()
    incident = NOTHING
    if not document.spec.get("test") or any(of_kind(run.read_facts()[0], SuitePassed)):  # not of collective tests
        incident = read_incident(run) or NOTHING
    concluded = None if document.roles else _concluded(run)
    verdict = judge(incident, concluded=concluded)
    if verdict is None:
        return _without_failure(run, incident)
    logs = log_files(run, verdict.attempt)
    if incident.hang is not None:  # the flight recorders that ranks were asked for
        recorders = run.log_path(0, "", FLIGHT, 0, 0).parent.glob("rank_*.jsonl")
        logs += sorted(path for path in recorders if path.stat().st_mtime >= incident.started_t)
    if logs:
        verdict = judge(incident, read_logs(logs), concluded) or verdict
    return verdict


def _without_failure(run: RunDirectory, incident: Incident) -> Verdict:
    """Judge a run whose facts tell of no failure: by its logs, and whether it goes on or its controller has ended."""
    condition = run.condition()
    state = condition.state
    words = WITHOUT_FAILURE.get(state)
    if words is not None:
        passed = next((f for f in incident.findings if f.id in (UNLIKE_SHAPES, UNLIKE_CALLS)), None)
        if passed is not None:
            return _no_failure(f"{run.name} ended, and nothing failed, with a warning: {passed.message}")
        return _no_failure(words.format(run.name))
    logs = log_files(run, 0)
    of_logs = judge_logs(read_logs(logs)) if logs else None
    if of_logs is not None and of_logs.cause != "unknown":
        return of_logs
    if state in GOING_ON:
        return _no_failure(HEALTHY.format(run.name, state))
    ended = lease_end(run, condition, time.time())
    if ended is not None:
        cause = CAUSES["controller-ended"]
        message = f"{controller_ended(ended.controller_t)}: the lease had ended the ranks by {utc(ended.ranks_t)}"
        remedy = f"{cause.remedy()}. `allranks attach` fetches the last output of the ranks"
        return Verdict(Finding(cause.id, "fail", message, remedy), cause.id, 0.8)
    if of_logs is None:
        message = f"{run.name} is {state}, and has no logs"
        return Verdict(Finding("unknown", "unknown", message), "unknown", 0.1)
    message = f"{run.name} is {state}: {of_logs.finding.message}"
    finding = of_logs.finding._replace(id="unknown", status="unknown", message=message)
    return of_logs._replace(finding=finding, cause="unknown", confidence=0.1)


def _no_failure(words: str) -> Verdict:
    """Say in place of a verdict that nothing has failed: `cause` is null, `status` is ok."""
    return Verdict(Finding("unknown", "ok", words), None, 1.0)


def complete(verdict: Verdict, run: RunDirectory) -> Verdict:
    """Complete a verdict that is not sure from the logs at the end of a run, where they are not too large."""
    logs = log_files(run, verdict.attempt)
    if not logs or sum(path.stat().st_size for path in logs) > AT_ONCE:
        return verdict
    return judge(read_incident(run) or NOTHING, read_logs(logs), verdict) or verdict


def log_files(run: RunDirectory, attempt: int) -> list[Path]:
    """Give the logs of an attempt, the kernel logs and messages kept as evidence, and what torch's watchdog dumped."""
    folder = run.path / "logs" / attempt_folder(attempt)
    logs = find_logs([str(folder)]) if folder.is_dir() else []
    if not attempt:
        logs = [p for p in logs if not any(part.startswith("attempt_") for part in p.relative_to(folder).parts)]
    document = run.read_run()
    role = role_of(run, document)
    if role is not None:  # logs of the others are of other worlds
        own = {node_folder(node.index or 0, node.name) for node in document.nodes if node.role == role.name}
        logs = [path for path in logs if own & set(path.parts)]
    evidence = run.path / "evidence"
    texts = [p for p in find_logs([str(evidence)]) if p.suffix in (".log", ".txt")] if evidence.is_dir() else []
    dumps = sorted(run.log_path(0, "", DUMP, 0, attempt).parent.glob(f"dump_a{attempt}_rank_*"))
    return [*logs, *(p for p in texts if not {"stacks", "ras"} & set(p.relative_to(evidence).parts)), *dumps]


def _concluded(run: RunDirectory) -> Verdict | None:
    document = run.read_document("verdict.json")
    if document is not None:
        return fitting(Verdict, document)
    result = run.read_result()
    return None if result is None else result.verdict
