"""What Slurm says of a job: why it waits, how it ended, in plain words and as findings (pure).

Facts: Slurm's job_state_string and job_reason_string (slurm_protocol_defs.c), `scontrol show job`, sacct.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from allranks.findings import OF_SLURM, Finding, Where
from allranks.plan.slurm_commands import WARNING_SIGNAL
from allranks.text import name_with

from .words import signal_name

PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
ACTIVE = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "RESIZING", "STOPPED"}
)
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")


class PendingReason(NamedTuple):
    """Why Slurm lets a job wait: the meaning, and what to do where waiting will not help.

    `hopeless`: no other job's end takes it away, only a change to the job, to the partition or to a limit. Slurm keeps
    such jobs in the queue where EnforcePartLimits and the QOS' DenyOnLimit do not refuse them (slurm.conf(5)).
    """

    meaning: str
    remedy: str = ""
    hopeless: bool = False


_AWAY = "`sinfo -R` says why nodes are away"
_OTHERS = "`sinfo -s` lists the others"
_ACCOUNTS = "`sacctmgr show assoc user=$USER` shows yours"
REASONS = {
    "None": PendingReason("Slurm has not considered it yet"),
    "Resources": PendingReason("it is the next in line and waits until enough nodes are free"),
    "Priority": PendingReason("jobs with a higher priority come first"),
    "ReqNodeNotAvail": PendingReason("a node it needs is down, drained or reserved", _AWAY),
    "UnavailableNodes": PendingReason("a node it needs is down, drained or reserved", _AWAY),
    "NodeDown": PendingReason("a node it needs is down", _AWAY),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": PendingReason(
        "nodes it needs are down, drained or reserved", _AWAY
    ),
    "Dependency": PendingReason("another job has to end first"),
    "DependencyNeverSatisfied": PendingReason("the job it depends on failed: it will never start", "scancel it", True),
    "BeginTime": PendingReason("its begin time has not come"),
    "Reservation": PendingReason("its reservation has not begun"),
    "ReservationDeleted": PendingReason("its reservation does not exist any more", "leave out --reservation", True),
    "JobHeldUser": PendingReason("you have put it on hold", "scontrol release {job}"),
    "JobHeldAdmin": PendingReason("an administrator holds it", "ask why, as only they can release it"),
    "launch failed requeued held": PendingReason(
        "its start failed on a node, and it is held", "scontrol release {job}, or scancel {job}"
    ),
    "PartitionDown": PendingReason("the partition takes no jobs to its nodes now", _OTHERS),
    "PartitionNodeLimit": PendingReason(
        "it asks for more nodes than the partition gives one job", "lower --nodes", True
    ),
    "PartitionTimeLimit": PendingReason(
        "it asks for more time than the partition gives", "lower --sbatch --time=…", True
    ),
    "PartitionConfig": PendingReason(
        "the partition has no nodes like that", "`sinfo -o '%P %D %c %m %G'` shows what it has", True
    ),
    "BadConstraints": PendingReason(
        "no node has what it asks for", "`sinfo -o '%P %D %c %m %G %f'` shows what exists", True
    ),
    "InvalidAccount": PendingReason("the account is not valid here", _ACCOUNTS, True),
    "InvalidQOS": PendingReason("the QOS is not valid here", "`sacctmgr show qos` shows what is", True),
    "AccountNotAllowed": PendingReason("the account may not use the partition", _ACCOUNTS, True),
    "QOSNotAllowed": PendingReason("the QOS may not be used there", _ACCOUNTS, True),
}
_BEYOND_JOB = PendingReason(
    "it asks for more than one job may have",
    "ask for less, after `sacctmgr show qos; sacctmgr show assoc user=$USER`",
    True,
)
_BELOW_QOS = PendingReason("it asks for less than the QOS allows", "ask for more, after `sacctmgr show qos`", True)
_REACHED = "a limit of the {} is reached: it waits until other jobs end"
_LIMIT = re.compile(r"(Assoc|QOS)(Grp|Max)?\w{0,40}?(Limit|PerUser|PerAccount|PerJob|PerNode|Minutes)\w{0,40}")
_PER_JOB = re.compile(r"Per(Job|Node)|Max(Wall|Node|Cpu|Mem|GRES)\w{0,40}PerJob|MaxWallDurationPerJobLimit")


@dataclass(frozen=True)
class SlurmJob:
    """A job as Slurm tells it. `state` is without what stands behind it (CANCELLED by 0)."""

    id: str
    state: str
    reason: str = ""
    nodes: str = ""
    partition: str = ""
    failed_node: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    start: str = ""
    end: str = ""
    limit: str = ""
    restarts: int = 0
    preempted: bool = False
    preempt_time: str = ""
    grace_time: int | None = None  # of its partition, in seconds, where that was asked for
    requeues: bool = False
    by: str = ""
    comment: str = ""
    stdout: str = ""  # where the batch script's own output goes

    def reported(self, state: str, failed_node: str = "") -> SlurmJob:
        """Add what slurmstepd and srun say of the job: while it completes, slurmctld does not say why."""
        return replace(self, state=state, failed_node=self.failed_node or failed_node)

    @property
    def waits(self) -> bool:
        """In the queue."""
        return self.state in PENDING

    @property
    def active(self) -> bool:
        """Its processes may run."""
        return self.state in ACTIVE

    @property
    def over(self) -> bool:
        """Nothing of it will run any more."""
        return not self.waits and not self.active


def read_scontrol(text: str) -> SlurmJob | None:
    """Read `scontrol --oneliner show job JOB`; None where it knows no such job."""
    fields: dict[str, str] = {}
    names = list(_FIELD.finditer(text))
    ends = [name.start() for name in names[1:]] + [len(text)]
    for name, end in zip(names, ends, strict=False):
        fields.setdefault(name[1], _value(text[name.end() : end].strip()))
    if "JobId" not in fields or "JobState" not in fields:
        return None
    code, signal = _exit(fields.get("ExitCode", ""))
    restarts = fields.get("Restarts", "")
    return SlurmJob(
        exit_code=code,
        exit_signal=signal,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        preempted=bool(fields.get("PreemptTime")),
        requeues=fields.get("Requeue") == "1",
        grace_time=None,
        **{field: fields.get(name, "") for field, name in _SCONTROL.items()},
    )


_SCONTROL = {
    "id": "JobId",
    "state": "JobState",
    "reason": "Reason",
    "nodes": "NodeList",
    "start": "StartTime",
    "end": "EndTime",
    "preempt_time": "PreemptTime",
    "limit": "TimeLimit",
    "failed_node": "FailedNode",
    "partition": "Partition",
    "comment": "Comment",
    "stdout": "StdOut",
}
SACCT_FORMAT = "JobIDRaw,State,ExitCode,NodeList,Start,End,Timelimit,Reason"


def read_sacct(text: str, job: str) -> SlurmJob | None:
    """Read `sacct -nPX -j JOB -o SACCT_FORMAT`; None where it has no such job."""
    rows = [line.split("|") for line in text.splitlines()]
    row = next((row for row in rows if len(row) == 8 and row[0] == job), None)
    if row is None:
        return None
    _, words, exited, nodes, start, end, limit, reason = row
    state, _, by = words.partition(" by ")
    code, signal = _exit(exited)
    return SlurmJob(
        job,
        state.strip(),
        _value(reason),
        _value(nodes),
        exit_code=code,
        exit_signal=signal,
        start=start,
        end=end,
        limit=limit,
        preempted=state == "PREEMPTED",
        by=by.strip(),
    )


def _exit(text: str) -> tuple[int | None, int | None]:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None:
        return None, None
    return int(match[1]), int(match[2])


def _value(text: str) -> str:
    if text in ("(null)", "None", "Unknown", "None assigned"):
        return ""
    return text


# -- waiting -------------------------------------------------------------------------------------------


def waiting(job: SlurmJob) -> str:
    """Say in one line why the job does not run yet."""
    if not job.waits:
        return {"CONFIGURING": "its nodes are being made ready"}.get(job.state, f"it is {job.state.lower()}")
    reason = read_reason(job.reason)
    if not reason.meaning:
        return job.reason
    meaning = reason.meaning
    if job.reason:
        meaning = f"{job.reason}: {meaning}"
    return name_with(meaning, reason.remedy.format(job=job.id))


def read_reason(reason: str) -> PendingReason:
    """Look up a job's reason; without a meaning where it is not known."""
    bare = re.split(r"[,(]", reason, maxsplit=1)[0].strip()
    meaning = REASONS.get(reason or "None", REASONS.get(bare))
    if meaning is not None:
        return meaning
    if _PER_JOB.search(bare) or bare == "MaxMemPerLimit":
        return _BEYOND_JOB
    if bare.startswith("QOSMin"):
        return _BELOW_QOS
    if _LIMIT.fullmatch(bare):
        owner = "QOS" if bare.startswith("QOS") else "account or user"
        return PendingReason(_REACHED.format(owner), "run `sacctmgr show assoc user=$USER; sshare`")
    return PendingReason("")


def is_hopeless(job: SlurmJob) -> bool:
    """Tell whether the job waits for what will not come. Of several partitions the reason is that of one alone."""
    return job.waits and "," not in job.partition and read_reason(job.reason).hopeless


def never_starts(job: SlurmJob, run: str) -> Finding:
    """Name a job that will not start as it is: nothing follows it."""
    reason = read_reason(job.reason)
    message = f"job {job.id} will not start as it is: {reason.meaning} ({job.reason})"
    ways = f"It stays in the queue. `allranks stop {run}` removes it, `scontrol update job={job.id} …` changes it"
    return _fail("slurm-config", message, f"{reason.remedy}. {ways}", _evidence(job))


# -- what to do next time ------------------------------------------------------------------------------


class Origin(enum.Enum):
    """How the job was started: it decides which options its owner can change, and where they are written."""

    ALLRANKS = "--sbatch"  # `allranks run --slurm`, or a script of `allranks render slurm`
    SCRIPT = "#SBATCH"
    SHELL = "salloc"


@dataclass(frozen=True)
class Advice:
    """Fixes in the words of the job's origin. `warn_seconds`: how long before the end a signal leaves ranks time to
    save (--stop-grace) and us to write it down."""

    origin: Origin = Origin.ALLRANKS
    warn_seconds: int = 45

    def option(self, text: str) -> str:
        """Write an option of sbatch or salloc where the user would write it."""
        return f"{self.origin.value} {text}"

    def without(self, node: str) -> str:
        """Write how to leave a node out."""
        return f"Leave it out: {self.option(f'--exclude={node}')}"

    @property
    def longer(self) -> str:
        """Against a time limit."""
        more = f"ask for more time ({self.option('--time=…')})"
        if self.origin is Origin.ALLRANKS:
            return f"{more} and save checkpoints in time: SIGTERM comes --stop-grace before the end"
        return f"{more}. {self.warning}"

    @property
    def warning(self) -> str:
        """How a script or an allocation of the user's own gives ranks time to save before a limit or a preemption."""
        if self.origin is Origin.SHELL:
            return f"With `salloc --signal=USR1@{self.warn_seconds}` ranks get SIGUSR1 before the end"
        directive = f"#SBATCH --signal=B:{WARNING_SIGNAL}@{self.warn_seconds}"
        return f"With `{directive}` and `exec allranks run` ranks get SIGTERM in time to save"

    @property
    def preempted(self) -> str:
        """Against a preemption."""
        if self.origin is Origin.SHELL:
            return "save checkpoints often: an allocation of salloc does not come back"
        again = "the job starts again by itself, as a fresh attempt"
        return f"save checkpoints at SIGTERM. With {self.option('--requeue')} {again}"


# -- the end -------------------------------------------------------------------------------------------


class GivenTime(NamedTuple):
    """The time from Slurm's word to its SIGKILL, or to the SIGTERM before that: seconds, and what sets them."""

    seconds: float
    source: str

    @property
    def words(self) -> str:
        """Say how long ranks had.

        >>> GivenTime(6, "KillWait").words
        '6 s (KillWait)'
        """
        return f"{self.seconds:.0f} s ({self.source})"


def time_given(job: SlurmJob, at: float, kill_wait: int | None) -> GivenTime | None:
    """Give the time that Slurm leaves a job from `at` on (unix seconds); None where it goes on, or Slurm does not say.

    A preemption moves EndTime to the end of the partition's GraceTime (slurmctld/preempt.c, _preempt_signal), which
    scontrol hides of jobs without a time limit. Without a GraceTime, at a time limit and at scancel, SIGKILL follows
    SIGTERM after KillWait (slurm.conf(5)).
    """
    if job.state != "RUNNING":
        return GivenTime(kill_wait, "KillWait") if kill_wait is not None else None
    since_end = seconds_since_end(job, at)
    preempted_t = _unix_seconds(job.preempt_time)
    if since_end is None and preempted_t is not None and job.grace_time is not None:
        since_end = at - preempted_t - job.grace_time
    if since_end is None or since_end >= 0 or (not job.preempted and -since_end > LIMIT_NEAR):
        return None
    return GivenTime(-since_end, "GraceTime" if job.preempted else "EndTime")


def nearly_over(job: SlurmJob, now: float) -> str:
    """Say when Slurm ends a job that runs; empty where that is not near, or not known. `now` is unix seconds."""
    given = time_given(job, now, None)
    if given is None:
        return ""
    if job.preempted:
        return f"it is preempted in {given.words}"
    return f"its time is up in {given.words}"


def ended(job: SlurmJob, kill_wait: int | None = None, line: str = "", advice: Advice = Advice()) -> Finding | None:
    """Say why Slurm ended a job; None where its own program did, or it goes on. `line` is slurmstepd's own."""
    evidence = _evidence(job, line)
    had = ""
    if kill_wait is not None:
        evidence = (*evidence, f"scontrol show config: KillWait = {kill_wait} sec")
        had = f", and ranks had {GivenTime(kill_wait, 'KillWait').words}"
    if job.state in ("TIMEOUT", "DEADLINE"):
        what = {"TIMEOUT": "its time limit", "DEADLINE": "its deadline"}[job.state]
        message = f"Slurm ended job {job.id}: {name_with(what, job.limit)} was up{had}"
        return _fail(LIMIT, message, advice.longer, evidence)
    if job.state == "PREEMPTED" or (job.preempted and job.state in ("REQUEUED", "CANCELLED", "COMPLETING", "PENDING")):
        message = f"Slurm preempted job {job.id}: a job of a higher priority took its nodes{had}"
        return _fail(LIMIT, message, advice.preempted, evidence)
    if job.state == "REQUEUED":
        return _fail(LIMIT, f"Slurm put job {job.id} back into the queue{had}", advice.preempted, evidence)
    if job.state == "NODE_FAIL" or (job.waits and job.failed_node):
        return _node_failed(job, evidence, advice)
    if job.state == "OUT_OF_MEMORY":
        message = f"Slurm ended job {job.id}: a process wanted more memory than the job has"
        remedy = f"ask for more with {advice.option('--mem=…')} (0: all of the node's)"
        return _fail("host-out-of-memory", message, remedy, evidence)
    if job.state == "CANCELLED":
        user = f"user {job.by}" if job.by.isdecimal() else job.by
        message = f"job {job.id} was cancelled" + (user and f" by {user}")
        return _fail("slurm-cancelled", message, "start it again if not meant", evidence)
    if job.state in ("BOOT_FAIL", "LAUNCH_FAILED", "REQUEUE_HOLD", "SPECIAL_EXIT") or "launch failed" in job.reason:
        why = ", ".join(part for part in (job.state, job.reason) if part)
        remedy = "the node's slurmd log says why, and so may `sinfo -R`"
        return _fail("slurm-config", f"Slurm could not start job {job.id} ({why})", remedy, evidence)
    return None


ENDS_OF_SLURM = (9, 15)  # SIGKILL, SIGTERM


def script_ended(job: SlurmJob, line: str = "") -> Finding | None:
    """Blame a batch script that ended before its step, which Slurm ends with it; None where Slurm ended the script.

    While the job completes, only the script's exit code tells it from a cancelled job, whose script ends by SIGTERM.
    """
    code = job.exit_code or 0
    number = job.exit_signal or 0
    if number in ENDS_OF_SLURM or code - 128 in ENDS_OF_SLURM:
        return None
    message = f"job {job.id}'s batch script ended (exit code {code}) before this run did: Slurm ends its steps with it"
    remedy = "end the script with `exec allranks run …`, or with `wait` after `&`"
    if number:
        name = signal_name(number)
        message = f"job {job.id}'s batch script was ended by {name}: its shell has no trap for it"
        remedy = f"start `exec allranks run …` in it, or begin the script with `trap '' {name.removeprefix('SIG')}`"
    return _fail("slurm-config", message, remedy, _evidence(job, line))


def _node_failed(job: SlurmJob, evidence: tuple[str, ...], advice: Advice) -> Finding:
    node = job.failed_node
    if not node and not re.search(r"[\[,]", job.nodes):
        node = job.nodes  # a list of one
    which = node or " of ".join(filter(None, ("a node", job.nodes)))
    message = f"Slurm ended job {job.id}: {which} failed (it no longer answers slurmctld)"
    remedy = f"`sinfo -R -l; scontrol show node {node or 'NODE'}` says since when. {advice.without(node or 'NODE')}"
    return _fail("node-network-down", message, remedy, evidence, node)


def warned(job: SlurmJob, at: float, advice: Advice = Advice()) -> Finding:
    """Name the end that Slurm announced at `at` (unix seconds): the limit where that was near, else a preemption."""
    given = time_given(replace(job, state="RUNNING"), _unix_seconds(job.preempt_time) or at, None)
    since = seconds_since_end(job, at)
    limit = name_with("time limit", job.limit)
    before = f" {given.seconds:.0f} s before (--signal)" if given is not None else ""
    message = f"job {job.id}'s {limit} was nearly up: Slurm warned of it{before}, and ranks were ended in order first"
    remedy = advice.longer
    if job.preempted or since is None or -since > LIMIT_NEAR:
        within = f"within {given.words}" if given is not None else "before it"
        message = f"Slurm preempted job {job.id} for one of a higher priority: ranks were ended in order {within}"
        remedy = advice.preempted
    return _fail(LIMIT, message, remedy, _evidence(job))


LIMIT = "slurm-preempted-or-timeout"
LIMIT_NEAR = 600.0  # seconds: Slurm's warnings of a limit come up to a minute early, ours at most minutes before it


def seconds_since_end(job: SlurmJob, now: float) -> float | None:
    """Give the seconds from a job's end to `now` (unix seconds), negative before it; None where Slurm does not say."""
    end = _unix_seconds(job.end)
    if end is None:
        return None
    return now - end


def _unix_seconds(time: str) -> float | None:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None


def _evidence(job: SlurmJob, line: str = "") -> tuple[str, ...]:
    parts = {"JobState": job.state, "Reason": job.reason, "PreemptTime": job.preempt_time, "EndTime": job.end}
    fields = " ".join(f"{name}={value}" for name, value in parts.items() if value)
    evidence = [f"scontrol show job {job.id}: {fields}"]
    if line:
        evidence.insert(0, f"slurmstepd: {line}")
    if job.grace_time is not None:
        evidence.append(f"scontrol show partition {job.partition}: GraceTime={job.grace_time}")
    return tuple(evidence)


def _fail(cause: str, message: str, remedy: str, evidence: tuple[str, ...], node: str = "") -> Finding:
    return Finding(cause, "fail", message, remedy, where=Where(node=node or None), evidence=evidence, check=OF_SLURM)


# -- what srun and slurmstepd print ----------------------------------------------------------------------

_DUE = re.compile(r"\*\*\* (?:STEP|JOB) (\S+) ON (\S+) CANCELLED AT (\S+?)(?: DUE TO ([A-Z ,]+?))? ?\*\*\*")
_DUE_STATES = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "JOB REQUEUE": "REQUEUED"}


def cancelled(text: str, since: str = "") -> tuple[str, str] | None:
    """Read slurmstepd's last word: (state, line) with TIMEOUT, PREEMPTED, NODE_FAIL, REQUEUED, else CANCELLED.

    What was said before `since` (local time, 2026-11-30T03:08:35) is of an earlier start.
    """
    newest = None
    for match in _DUE.finditer(text):
        if len(match[3]) == len(since) and match[3] < since:  # SLURM_TIME_FORMAT may ask for another form
            continue
        due = (match[4] or "").strip()
        state = "NODE_FAIL" if due.startswith("NODE FAIL") else _DUE_STATES.get(due, "CANCELLED")
        if newest is None or newest[0] == "CANCELLED":
            newest = (state, match[0])
    return newest


def error_lines(stderr: str) -> tuple[str, ...]:
    """Give the lines that srun and slurmstepd call errors."""
    return tuple(line.strip() for line in stderr.splitlines() if "error" in line)


_OOM = re.compile(r"\boom.kill event")


def out_of_memory(text: str) -> str:
    """Find slurmstepd's line on the memory limit of a step; empty where there is none."""
    return next((line.strip() for line in text.split("\n") if _OOM.search(line)), "")


_NODE_FAILURE = re.compile(r"[Nn]ode failure on (?P<node>[\w.-]+)(?P<why>)")
_ON_NODE = (
    re.compile(r"Task launch for \S+ failed on node (?P<node>[\w.-]+): (?P<why>.+)"),
    _NODE_FAILURE,
    re.compile(r"[Tt]imed out waiting for (?:job )?(?:step|launch) response from (?P<node>[\w.-]+)(?P<why>)"),
)
_TASK = re.compile(r"error: (?P<node>[\w.-]+): tasks? [\d,-]+: (?P<why>.+)")  # ended by itself, or with the step
_WITH_THE_STEP = re.compile(r"Killed|Terminated|exit code 1(?:37|43)\b")
_STEP_ENDS = re.compile(r"Terminating StepId|Job step aborted|forcing job termination|\*\*\* (?:STEP|JOB) ")


def nodes_at_fault(stderr: str, nodes: Collection[str] | None = None) -> dict[str, str]:
    """Map the nodes that srun complains of to its words. `nodes` are the ones that count.

    Of tasks that were killed those count whose end made srun end the step: they are named before it says so.
    """
    failed: dict[str, str] = {}
    ended: dict[str, str] = {}
    killed_first: dict[str, str] | None = None
    for line in stderr.splitlines():
        if killed_first is None and _STEP_ENDS.search(line):
            killed_first = dict(ended)
        for pattern in (*_ON_NODE, _TASK):
            match = pattern.search(line)
            if match and (nodes is None or match["node"] in nodes):
                by_node = ended if pattern is _TASK else failed
                by_node.setdefault(match["node"], (match["why"] or line).strip())
    return failed or killed_first or {node: why for node, why in ended.items() if not _WITH_THE_STEP.search(why)}


def failed_node(stderr: str, nodes: Collection[str]) -> tuple[str, str]:
    """Find the first of the nodes that srun says has failed, and its line; empty texts where there is none."""
    for line in stderr.splitlines():
        match = _NODE_FAILURE.search(line)
        if match and match["node"] in nodes:
            return match["node"], line.strip()
    return "", ""


NO_PYTHON = "no Python 3.8 or newer was found"
_DEAD = re.compile(r"communication|timed out|node failure|not responding|refused", re.IGNORECASE)


def task_failed(node: str, why: str, started: bool, evidence: tuple[str, ...], advice: Advice = Advice()) -> Finding:
    """Make the finding about a node that srun or its own shell has given up; `started`: allranks ran there before."""
    if NO_PYTHON in why:
        remedy = "name one with --agent-python /path/to/python3"
        return _fail("environment-mismatch", f"{node}: {why}", remedy, evidence, node)
    what = "Slurm could not start its task"
    cause = "slurm-config"
    if started:
        what = "srun ended the step because of its task there"
        cause = "agent-killed" if why == "Killed" else "unknown"
    if _DEAD.search(why):
        cause = "node-network-down"
    remedy = f"`sinfo -n {node} -R; scontrol show node {node}` says more. {advice.without(node)}"
    return _fail(cause, f"{node}: {what}: {why}", remedy, evidence, node)


def step_ended(
    stderr: str, at_fault: Mapping[str, str], started: Collection[str], code: int | None, advice: Advice = Advice()
) -> Finding:
    """Explain an srun that ended before the run did: by a task of a node, else by what it said last.

    `at_fault` are the nodes that srun complains of, with its words; allranks has run on those in `started`.
    """
    lines = error_lines(stderr)[-3:]
    if len(at_fault) == 1:
        (node, why), *_ = at_fault.items()
        return task_failed(node, why, node in started, lines, advice)
    last = "".join(lines[-1:])[:300] or "it said nothing"
    message = f"srun ended (exit code {code}) before this run did: {last}"
    return _fail("slurm-config", message, "see srun.log in the run directory", lines)
