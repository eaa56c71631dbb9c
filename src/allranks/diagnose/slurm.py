"""What Slurm says of a job: why it waits, how it ended, in plain words and as findings (pure).

Facts: Slurm's job_state_string and job_reason_string (slurm_protocol_defs.c), `scontrol show job`, sacct.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from allranks.findings import Finding, Where
from allranks.plan.slurm import WARNING_SIGNAL

from .words import signal_name

CHECK = "slurm"  # findings that are Slurm's own word carry it
PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
ACTIVE = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "RESIZING", "STOPPED"}
)
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")

# Slurm's reason: what it means, and what to do where waiting will not help.
REASONS: dict[str, tuple[str, str]] = {
    "None": ("Slurm has not looked at it yet", ""),
    "Resources": ("it is the next in line and waits until enough nodes are free", ""),
    "Priority": ("jobs with a higher priority come first", ""),
    "ReqNodeNotAvail": ("a node it needs is down, drained or reserved", "sinfo -R says why nodes are away"),
    "UnavailableNodes": ("a node it needs is down, drained or reserved", "sinfo -R says why nodes are away"),
    "NodeDown": ("a node it needs is down", "sinfo -R says why nodes are away"),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": (
        "nodes it needs are down, drained or reserved",
        "sinfo -R says why nodes are away",
    ),
    "Dependency": ("another job has to end first", ""),
    "DependencyNeverSatisfied": ("the job it depends on failed: it will never start", "scancel it"),
    "BeginTime": ("its begin time has not come", ""),
    "Reservation": ("its reservation has not begun", ""),
    "ReservationDeleted": ("its reservation is gone", "leave out --reservation"),
    "JobHeldUser": ("you have put it on hold", "scontrol release {job}"),
    "JobHeldAdmin": ("an administrator holds it", "ask why; only they can release it"),
    "launch failed requeued held": (
        "its start failed on a node; it is held",
        "scontrol release {job}, or scancel {job}",
    ),
    "PartitionDown": ("the partition takes no jobs to its nodes now", "sinfo -s lists the others"),
    "PartitionInactive": ("the partition is inactive", "sinfo -s lists the others"),
    "PartitionNodeLimit": ("it asks for more nodes than the partition gives one job", "ask for fewer: --nodes"),
    "PartitionTimeLimit": ("it asks for more time than the partition gives", "ask for less: --sbatch --time=…"),
    "PartitionConfig": ("the partition has no nodes like that", "sinfo -o '%P %D %c %m %G' shows what it has"),
    "BadConstraints": ("no node has what it asks for", "sinfo -o '%P %D %c %m %G %f' shows what there is"),
    "Licenses": ("it waits for a licence", ""),
    "InvalidAccount": ("the account is not valid here", "sacctmgr show assoc user=$USER"),
    "InvalidQOS": ("the QOS is not valid here", "sacctmgr show qos"),
    "AccountNotAllowed": ("the account may not use the partition", "sacctmgr show assoc user=$USER"),
    "QOSNotAllowed": ("the QOS may not be used there", "sacctmgr show assoc user=$USER"),
    "JobArrayTaskLimit": ("the array's limit of tasks at a time is reached", ""),
    "Cleaning": ("it is being cleaned up after an earlier start", ""),
    "Prolog": ("the nodes' prolog is running", ""),
    "MaxGRESPerAccount": ("the account has as many GPUs as it may", ""),
}
_LIMIT = re.compile(r"(Assoc|QOS)(Grp|Max)?\w{0,40}?(Limit|PerUser|PerAccount|PerJob|PerNode|Minutes)\w{0,40}")
_PER_JOB = re.compile(r"Per(Job|Node)|Max(Wall|Node|Cpu|Mem|GRES)\w{0,40}PerJob|MaxWallDurationPerJobLimit")


@dataclass(frozen=True)
class Job:
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
    requeues: bool = False
    by: str = ""
    comment: str = ""
    stdout: str = ""  # where the batch script's own output goes

    def told(self, state: str, failed_node: str) -> Job:
        """The same job with what slurmstepd and srun say of it: while it completes, slurmctld does not say why."""
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


def read_scontrol(text: str) -> Job | None:
    """Of `scontrol --oneliner show job JOB`; None where it knows no such job."""
    fields: dict[str, str] = {}
    names = list(_FIELD.finditer(text))
    ends = [name.start() for name in names[1:]] + [len(text)]
    for name, end in zip(names, ends, strict=False):
        fields.setdefault(name[1], text[name.end() : end].strip())
    if "JobId" not in fields or "JobState" not in fields:
        return None
    code, sign = _exit(fields.get("ExitCode", ""))
    restarts = fields.get("Restarts", "0")
    return Job(
        fields["JobId"],
        fields["JobState"],
        _known(fields.get("Reason")),
        _known(fields.get("NodeList")),
        exit_code=code,
        exit_signal=sign,
        start=_known(fields.get("StartTime")),
        end=_known(fields.get("EndTime")),
        limit=_known(fields.get("TimeLimit")),
        restarts=int(restarts) if restarts.isdecimal() else 0,
        preempted=bool(_known(fields.get("PreemptTime"))),
        failed_node=_known(fields.get("FailedNode")),
        requeues=fields.get("Requeue") == "1",
        partition=_known(fields.get("Partition")),
        comment=_known(fields.get("Comment")),
        stdout=_known(fields.get("StdOut")),
    )


SACCT_FORMAT = "JobIDRaw,State,ExitCode,NodeList,Start,End,Timelimit,Reason"


def read_sacct(text: str, job: str) -> Job | None:
    """Of `sacct -nPX -j JOB -o SACCT_FORMAT`."""
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 8 and parts[0] == job:
            state, _, by = parts[1].partition(" by ")
            code, sign = _exit(parts[2])
            return Job(
                job,
                state.strip(),
                _known(parts[7]),
                _known(parts[3]),
                exit_code=code,
                exit_signal=sign,
                start=parts[4],
                end=parts[5],
                limit=parts[6],
                preempted=state == "PREEMPTED",
                by=by.strip(),
            )
    return None


def _exit(text: str) -> tuple[int | None, int | None]:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (None, None)


def _known(text: str | None) -> str:
    return "" if text in (None, "(null)", "None", "Unknown", "None assigned") else str(text)


# -- waiting -------------------------------------------------------------------------------------------


def waiting(job: Job) -> str:
    """One line: why the job does not run yet."""
    if not job.waits:
        return {"CONFIGURING": "its nodes are being made ready"}.get(job.state, f"it is {job.state.lower()}")
    meaning, remedy = _meaning(job.reason)
    tail = f" ({remedy.format(job=job.id)})" if remedy else ""
    named = f"{job.reason}: " if job.reason else ""
    return f"{named}{meaning}{tail}" if meaning else job.reason


def _meaning(reason: str) -> tuple[str, str]:
    bare = re.split(r"[,(]", reason, maxsplit=1)[0].strip()
    for key in (reason, bare):
        if key in REASONS:
            return REASONS[key]
    if not reason:
        return REASONS["None"]
    if _PER_JOB.search(bare) or bare == "MaxMemPerLimit":
        return (
            "it asks for more than one job may have",
            "ask for less; sacctmgr show qos, sacctmgr show assoc user=$USER",
        )
    if bare.startswith("QOSMin"):
        return "it asks for less than the QOS allows", "ask for more; sacctmgr show qos"
    if _LIMIT.fullmatch(bare):
        who = "QOS" if bare.startswith("QOS") else "account or user"
        return (
            f"a limit of the {who} is reached: it waits until other jobs end",
            "sacctmgr show assoc user=$USER; sshare",
        )
    return "", ""


# Reasons that no other job's end takes away: only a change to the job, to the partition or to a limit does. Slurm keeps
# such jobs in the queue where EnforcePartLimits and the QOS' DenyOnLimit do not refuse them (slurm.conf(5)).
_HOPELESS = frozenset(
    {
        "DependencyNeverSatisfied",
        "ReservationDeleted",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "PartitionConfig",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "MaxMemPerLimit",
    }
)


def is_hopeless(job: Job) -> bool:
    """Whether the job waits for what will not come. Of several partitions the reason is that of one alone."""
    bare = re.split(r"[,(]", job.reason, maxsplit=1)[0].strip()
    beyond = bare in _HOPELESS or bare.startswith("QOSMin") or bool(_PER_JOB.search(bare))
    return beyond and job.waits and "," not in job.partition


def never_starts(job: Job, run: str) -> Finding:
    """Nobody follows a job that will not start as it is."""
    meaning, remedy = _meaning(job.reason)
    message = f"job {job.id} will not start as it is: {meaning} ({job.reason})"
    ways = f"It stays in the queue. `allranks stop {run}` removes it, `scontrol update job={job.id} …` changes it"
    return _fail("slurm-config", message, f"{remedy}. {ways}" if remedy else ways, _evidence(job, ""))


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
        """An option of sbatch or salloc where the user would write it."""
        return f"{self.origin.value} {text}"

    @property
    def longer(self) -> str:
        """Against a time limit."""
        more = f"ask for more time ({self.option('--time=…')})"
        if self.origin is Origin.ALLRANKS:
            return f"{more} and save checkpoints in time: SIGTERM comes --stop-grace before the end"
        if self.origin is Origin.SCRIPT:
            return f"{more}. {self.warning}"
        return f"{more}. With `salloc --signal=USR1@{self.warn_seconds}` ranks get SIGUSR1 before the end"

    @property
    def warning(self) -> str:
        """How a script of the user's own gives ranks time to save before a limit or a preemption."""
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


def ended(job: Job, kill_wait: int | None = None, line: str = "", advice: Advice = Advice()) -> Finding | None:
    """Why Slurm ended a job; None where its own program did, or it goes on. `line` is slurmstepd's own word."""
    limit = f" ({job.limit})" if job.limit else ""
    saved = "" if kill_wait is None else f"; ranks had {kill_wait} s (KillWait)"
    evidence = _evidence(job, line)
    if job.state in ("TIMEOUT", "DEADLINE"):
        what = "its time limit" if job.state == "TIMEOUT" else "its deadline"
        message = f"Slurm ended job {job.id}: {what}{limit} was up{saved}"
        return _fail(LIMIT, message, advice.longer, evidence)
    if job.state == "PREEMPTED" or (job.preempted and job.state in ("REQUEUED", "CANCELLED", "COMPLETING", "PENDING")):
        message = f"Slurm preempted job {job.id}: a job of a higher priority took its nodes"
        return _fail(LIMIT, message, advice.preempted, evidence)
    if job.state == "REQUEUED":
        return _fail(LIMIT, f"Slurm put job {job.id} back into the queue", advice.preempted, evidence)
    if job.state == "NODE_FAIL" or (job.state in PENDING and job.failed_node):
        return _node_failed(job, evidence, advice)
    if job.state == "OUT_OF_MEMORY":
        message = f"Slurm ended job {job.id}: a process wanted more memory than the job has"
        remedy = f"ask for more: {advice.option('--mem=…')} (0: all of the node's)"
        return _fail("host-out-of-memory", message, remedy, evidence)
    if job.state == "CANCELLED":
        by = f" by {_user(job.by)}" if job.by else ""
        return _fail("slurm-cancelled", f"job {job.id} was cancelled{by}", "start it again if not meant", evidence)
    if job.state in ("BOOT_FAIL", "LAUNCH_FAILED", "REQUEUE_HOLD", "SPECIAL_EXIT") or "launch failed" in job.reason:
        message = f"Slurm could not start job {job.id} ({job.state}{', ' + job.reason if job.reason else ''})"
        return _fail("slurm-config", message, "the node's slurmd log says why; sinfo -R", evidence)
    return None


def script_ended(job: Job, line: str = "") -> Finding | None:
    """The batch script ended while a step of it went on, which Slurm ends with it; None where it was Slurm's doing.

    While the job completes, only the script's exit code tells it from a cancelled job, whose script ends by SIGTERM.
    """
    code = job.exit_code or 0
    number = job.exit_signal or 0
    if number in ENDS_OF_SLURM or code in (128 + end for end in ENDS_OF_SLURM):
        return None
    evidence = _evidence(job, line)
    if number:
        name = signal_name(number)
        message = f"job {job.id}'s batch script was ended by {name}: its shell has no trap for it"
        remedy = f"start `exec allranks run …` in it, or begin the script with `trap '' {name.replace('SIG', '')}`"
        return _fail("slurm-config", message, remedy, evidence)
    message = f"job {job.id}'s batch script ended (exit code {code}) before this run did: Slurm ends its steps with it"
    remedy = "end the script with `exec allranks run …`, or with `wait` after `&`"
    return _fail("slurm-config", message, remedy, evidence)


ENDS_OF_SLURM = (9, 15)  # SIGKILL, SIGTERM


def _node_failed(job: Job, evidence: tuple[str, ...], advice: Advice) -> Finding:
    node = job.failed_node or _only(job.nodes)
    which = node or (f"a node of {job.nodes}" if job.nodes else "a node")
    message = f"Slurm ended job {job.id}: {which} failed (it no longer answers slurmctld)"
    name = node or "NODE"
    without = advice.option(f"--exclude={name}")
    remedy = f"sinfo -R -l; scontrol show node {name} says since when. Leave it out: {without}"
    return _fail("node-network-down", message, remedy, evidence, node)


def warned(job: Job, at: float, now: float, advice: Advice = Advice()) -> Finding:
    """Slurm announced the end at `at` (unix seconds): the time limit where that is near, else a preemption."""
    left = _seconds_until(job.end, now)
    limit = f" ({job.limit})" if job.limit else ""
    if job.preempted or left is None or left > LIMIT_NEAR:
        message = f"Slurm preempted job {job.id} for one of a higher priority: ranks were ended in order before it"
        return _fail(LIMIT, message, advice.preempted, _evidence(job, ""))
    message = f"job {job.id}'s time limit{limit} was nearly up: Slurm said so, and ranks were ended in order before it"
    return _fail(LIMIT, message, advice.longer, _evidence(job, ""))


def seconds_since_end(job: Job, now: float) -> float | None:
    """Since a job that is over has ended; None where Slurm does not say. `now`: unix seconds."""
    left = _seconds_until(job.end, now)
    return None if left is None else -left


def _seconds_until(text: str, now: float) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() - now
    except ValueError:
        return None


LIMIT = "slurm-preempted-or-timeout"
LIMIT_NEAR = 600.0  # seconds: Slurm's warnings of a limit come up to a minute early, ours at most minutes before it


def _only(nodes: str) -> str:
    """The node, where the list has one."""
    return "" if any(character in nodes for character in "[,") else nodes


def _user(by: str) -> str:
    return f"user {by}" if by.isdecimal() else by


def _evidence(job: Job, line: str) -> tuple[str, ...]:
    parts = {"JobState": job.state, "Reason": job.reason, "EndTime": job.end}
    fields = " ".join(f"{name}={value}" for name, value in parts.items() if value)
    return (*((f"slurmstepd: {line}",) if line else ()), f"scontrol show job {job.id}: {fields}")


def _fail(cause: str, message: str, remedy: str, evidence: tuple[str, ...], node: str = "") -> Finding:
    return Finding(cause, "fail", message, remedy, Where(node=node or None), evidence, CHECK)


# -- what srun and slurmstepd print ----------------------------------------------------------------------

_DUE = re.compile(r"\*\*\* (?:STEP|JOB) (\S+) ON (\S+) CANCELLED AT (\S+?)(?: DUE TO ([A-Z ,]+?))? ?\*\*\*")
_DUE_STATES = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "JOB REQUEUE": "REQUEUED"}


def cancelled(text: str) -> tuple[str, str] | None:
    """(state, line) of slurmstepd's last word: TIMEOUT, PREEMPTED, NODE_FAIL, REQUEUED, else CANCELLED."""
    newest = None
    for match in _DUE.finditer(text):
        due = (match[4] or "").strip()
        state = "NODE_FAIL" if due.startswith("NODE FAIL") else _DUE_STATES.get(due, "CANCELLED")
        if newest is None or newest[0] == "CANCELLED":
            newest = (state, match[0])
    return newest


def error_lines(stderr: str) -> tuple[str, ...]:
    """What srun and slurmstepd call errors."""
    return tuple(line.strip() for line in stderr.splitlines() if "error" in line)


_OOM = re.compile(r"\boom.kill event")


def out_of_memory(text: str) -> str:
    """slurmstepd's line on the memory limit of a step; empty where there is none."""
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


def nodes_at_fault(stderr: str, nodes: Mapping[str, int] | None = None) -> dict[str, str]:
    """What srun says of single nodes: name → its words. `nodes` are the ones that count.

    Of tasks that were killed those count whose end made srun end the step: they are named before it says so.
    """
    failed: dict[str, str] = {}
    ended: dict[str, str] = {}
    killed_first: dict[str, str] = {}
    step_ends = False
    for line in stderr.splitlines():
        if _STEP_ENDS.search(line) and not step_ends:
            step_ends = True
            killed_first = dict(ended)
        for pattern in (*_ON_NODE, _TASK):
            match = pattern.search(line)
            if match and (nodes is None or match["node"] in nodes):
                (ended if pattern is _TASK else failed).setdefault(match["node"], (match["why"] or line).strip())
    return failed or killed_first or {node: why for node, why in ended.items() if not _WITH_THE_STEP.search(why)}


def failed_node(stderr: str, nodes: Mapping[str, int]) -> tuple[str, str]:
    """The first of the nodes that srun says has failed, and its line; empty where it says of none."""
    for line in stderr.splitlines():
        match = _NODE_FAILURE.search(line)
        if match and match["node"] in nodes:
            return match["node"], line.strip()
    return "", ""


NO_PYTHON = "no Python 3.8 or newer was found"
_DEAD = re.compile(r"communication|timed out|node failure|not responding|refused", re.IGNORECASE)


def task_failed(node: str, why: str, started: bool, evidence: tuple[str, ...], advice: Advice = Advice()) -> Finding:
    """A node that srun or its own shell has given up; `started`: allranks ran there before."""
    if NO_PYTHON in why:
        remedy = "name one with --agent-python /path/to/python3"
        return _fail("environment-mismatch", f"{node}: {why}", remedy, evidence, node)
    what = "srun ended the step because of its task there" if started else "Slurm could not start its task"
    without = advice.option(f"--exclude={node}")
    remedy = f"sinfo -n {node} -R; scontrol show node {node} says more. Leave it out: {without}"
    cause = "unknown" if started else "slurm-config"
    if _DEAD.search(why):
        cause = "node-network-down"
    return _fail(cause, f"{node}: {what}: {why}", remedy, evidence, node)


def step_ended(
    stderr: str, at_fault: Mapping[str, str], started: Collection[str], code: int | None, advice: Advice = Advice()
) -> Finding:
    """srun has ended before the run did: for a task of a node, else for what it said last.

    `at_fault` are the nodes that srun complains of, with its words; allranks has run on those in `started`.
    """
    lines = error_lines(stderr)
    if len(at_fault) == 1:
        (node, why), *_ = at_fault.items()
        return task_failed(node, why, node in started, lines[-3:], advice)
    message = f"srun ended (exit code {code}) before this run did: {lines[-1][:300] if lines else 'it said nothing'}"
    return _fail("slurm-config", message, "see srun.log in the run directory", lines[-3:])
