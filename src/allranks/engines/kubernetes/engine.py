"""Kubernetes as an engine: pods that run `allranks join`, driven and followed through kubectl."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from allranks.diagnose.causes import exit_code
from allranks.diagnose.pod_states import (
    IMAGE,
    Pod,
    PodEvent,
    hopeless,
    not_reached,
    read_pods,
    refusal,
    suspended,
    troubles,
    waiting,
)
from allranks.errors import AllranksError, NodeError, UsageError
from allranks.exitcodes import CTRL_C, DONE, NODE_FAILED, PROGRAM_FAILED
from allranks.findings import Finding, Verdict, Where
from allranks.plan.environment import forwarded
from allranks.plan.render.kubernetes import manifests, pod_names, pod_settings, secret_manifest
from allranks.plan.render.pod_spec import CONTAINER, RUN_LABEL, PodJob
from allranks.plan.render.yamltext import yaml_text
from allranks.protocol.codec import decode_each, document_line
from allranks.protocol.processes import RemainingProcess
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document, Left, ResultDocument
from allranks.runs.opening import take_control
from allranks.runs.result import least_result, write_result
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved

from .. import NotStarted, zipapp
from ..following import show_opening, verdict_on
from ..program_lines import ProcessLines
from ..remote import RemoteEngine, RemoteRun, create_run, hidden_values, name_of, read_place
from .kubectl import Kubectl, KubectlError

# -- A run in pods, from here ------------------------------------------------------------------------------------------

LOOK_EVERY = 2.0
LOOK_AT_MOST = 10.0
PATIENCE = 6.0  # seconds that a pod which has ended may take to show its last lines
READING = 20.0  # seconds that the log of a run without a follower may take
STUCK = 60.0  # beyond the pods' grace: then they are removed without one
# What node 0 says where it can't know: Kubernetes' own reason is nearer to the cause.
_OUTER = """
    unknown rendezvous-timeout peer-died node-network-down master-unreachable host-out-of-memory
    dataloader-worker-killed rank-killed
"""
OUTER = frozenset(_OUTER.split())


class PodsOfRun(NamedTuple):
    """Where a run is, as run.json's `engine` has it. `patience`: seconds that an image may take."""

    engine: str
    name: str
    kind: str
    nodes: int
    namespace: Optional[str] = None  # noqa: UP045  (the codec reads these annotations on Python 3.8, too)
    context: Optional[str] = None  # noqa: UP045
    patience: float = 600.0


class PodsFollower(RemoteRun):
    """The pods of one run, followed from this process, which also removes them and writes the run's end."""

    def __init__(self, run: RunDirectory, place: PodsOfRun, view: View) -> None:
        super().__init__(run, view, place.engine, place.name)
        self._place = place
        self.kubectl = Kubectl(place.context, place.namespace)
        self.pods: list[Pod] = []
        self.events: list[PodEvent] = []
        self._log: PodLog | None = None
        self._followed = ""  # uid of the pod whose log is read
        self._since = str((run.read_document("follow.json") or {}).get("since") or "")
        self.ask_at = 0.0
        self.pause = LOOK_EVERY
        self._shown_reason = ""
        self._shown_reasons: set[str] = set()
        self._alone_since: float | None = None
        self._ended_at: float | None = None
        self._image_since: float | None = None
        self._lost = ""  # why the cluster does not answer
        self._stop_since = 0.0
        self._stop_grace: int | None = None
        self._stop_asked = True

    # -- following ---------------------------------------------------------------------------------

    def turn(self) -> ResultDocument | None:
        """Show what is new; return the result once the run is over."""
        now = time.monotonic()
        self._read()
        if now >= self.ask_at or self.replay.result is not None:
            self.ask(now)
        if self.replay.result is None:
            return self._over(now)
        if self._ended_at is None:
            self._ended_at = now
        if not self._all_over() and self._is_outer() and now - self._ended_at < PATIENCE:
            return None  # the pods' own end says more than what node 0 saw
        return self._judge(self.replay.result)

    def _read(self) -> None:
        if self._log is None:
            return
        lines = self._log.lines()
        for line in lines:
            self.replay.line(line)
        if lines and self._log.since != self._since:
            self._since = self._log.since
            self.run.write_document("follow.json", {"pod": self._log.pod, "since": self._since})

    def ask(self, now: float) -> None:
        """Ask the cluster for the pods. A cluster that does not answer is asked again, and the run goes on."""
        queue = None
        try:
            self._read_pods()
            if not self.pods and not self.stopping:
                queue = self.kubectl.queue_holding(self.name, self._place.kind)
            self._lost = ""
        except (NodeError, UsageError) as error:
            self._lost = str(error)
        if not self._stop_asked and not self._lost:
            self._ask_to_stop()
        if self.stopping:
            reason = self._lost
        elif queue is not None:
            reason = suspended(self._place.nodes, queue)
        else:
            reason = self._lost or waiting(self.pods, self.events, self._place.nodes)
        if reason or self._shown_reason:
            self.pause = LOOK_EVERY
        else:
            self.pause = min(LOOK_AT_MOST, self.pause * 1.5)
        self._show_reason(reason)
        self.ask_at = now + self.pause
        first = self._first()
        if first is not None and first.started and first.uid != self._followed:
            self._follow(first)

    def _read_pods(self) -> None:
        self.pods = read_pods(self.kubectl.pods(self.name), CONTAINER)
        self.events = decode_each(PodEvent, self.kubectl.events(self.name))

    def _show_reason(self, reason: str) -> None:
        """Show why the run waits. Reasons take turns, and each is shown once."""
        if reason and reason not in self._shown_reasons:
            self._shown_reasons.add(reason)
            self.say(reason)
        elif self._shown_reason and not reason and not self.stopping:
            self._shown_reasons.clear()
            self.say(f"all {self._place.nodes} pods have started" if self._place.nodes > 1 else "the pod has started")
        self._shown_reason = reason

    def _first(self) -> Pod | None:
        return next((p for p in self.pods if p.index == 0), None)

    def _follow(self, first: Pod) -> None:
        since = self._since if not self._followed else ""
        if self._log is not None:
            self._log.close()
        self._followed = first.uid
        self._log = PodLog(self.kubectl, first.name, since)

    # -- the end -----------------------------------------------------------------------------------

    def _over(self, now: float) -> ResultDocument | None:
        """Return the result where pod 0 has ended, or never can start, and has sent none; else None."""
        if self._lost:
            if self.stopping and now - self._stop_since > STUCK:
                return self._concluded(None)
            return None
        if not self.stopping:
            never = hopeless(self.pods, self.events, self._image_wait(now))
            if never is not None:
                return self._concluded(never)
        first = self._first()
        was_there = bool(self._followed) or self.stopping
        is_over = was_there if first is None else first.ended
        if not is_over and not self._all_over():
            self._alone_since = None
            return None
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since < PATIENCE and not (self.stopping and not self._followed):
            return None
        return self._concluded(self._cause())

    def _image_wait(self, now: float) -> bool:
        if not any(p.why in IMAGE for p in self.pods):
            self._image_since = None
            return False
        if self._image_since is None:
            self._image_since = now
        return now - self._image_since > self._place.patience

    def _all_over(self) -> bool:
        return bool(self.pods) and all(p.ended for p in self.pods)

    def _cause(self) -> Finding | None:
        """Say why a result is missing: Kubernetes' reason, else the last words of pod 0, or of another pod."""
        if self.stopping:
            return None
        reasons = troubles(self.pods, self.events)
        if reasons:
            return reasons[0]
        pod = self._first() or next(iter(self.pods), None)
        if pod is None:
            message = f"the pods of {self.name} were removed before they gave a result"
            remedy = "see who removed them: kubectl get events --sort-by=.lastTimestamp"
            return Finding("unknown", "fail", message, remedy, check="kubernetes")
        words = tuple(self.replay.last_words[-5:]) or self.kubectl.last_words(pod.name)
        code = f"exit code {pod.exit_code}" if pod.exit_code is not None else pod.phase.lower()
        message = f"{pod.host} ended ({code}) without a result"
        where = Where(node=pod.host)
        return Finding("unknown", "fail", message, f"kubectl logs {pod.name}", where, words, check="kubernetes")

    def _concluded(self, finding: Finding | None) -> ResultDocument:
        verdict = verdict_on(finding, 0.95)
        failed = any(p.exit_code for p in self.pods)
        code = exit_code(verdict, "stop" if self.stopping else None, failed)
        if verdict is not None and code not in (PROGRAM_FAILED, NODE_FAILED):
            code = NODE_FAILED
        return least_result(self.run, code, verdict)

    def _is_outer(self) -> bool:
        """Tell whether node 0 saw that something ended from outside of the program."""
        result = self.replay.result
        if result is None or result.verdict is None or self.stopping:
            return False
        return result.verdict.cause in OUTER

    def _judge(self, result: ResultDocument) -> ResultDocument:
        """Return node 0's result, with Kubernetes' reason where that is nearer to the cause."""
        verdict = result.verdict
        if verdict is None or not self._is_outer():
            return result
        blamed = verdict.finding.where.node
        reasons = troubles(self.pods, self.events)
        if blamed is not None:
            reasons = [reason for reason in reasons if reason.where.node in (blamed, None)]
        if not reasons:
            return result
        finding = reasons[0]._replace(evidence=(*reasons[0].evidence, verdict.finding.message))
        nearer = Verdict(finding, finding.id, 0.95, verdict.victims, attempt=verdict.attempt)
        code = NODE_FAILED if result.exit == DONE else result.exit
        return dataclasses.replace(result, verdict=nearer, exit=code)

    # -- ending ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the run. Once: ranks may save. Twice: now."""
        if self.stopping:
            self._stop_grace = 0
            self.say("ending at once")
        else:
            self.say("stopping: ranks have their time to save")
        self.stopping = True
        self.ask_at = 0.0
        self._stop_since = time.monotonic()
        self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        """Remove the pods; a cluster that does not answer is asked again at the next look."""
        try:
            self.kubectl.remove(self.name, self._place.kind, self._stop_grace)
            self._stop_asked = True
        except KubectlError as error:
            self._stop_asked = False
            self._lost = str(error)

    def settle(self) -> None:
        """Write the end of a run without a follower, if its pods are over; nothing where it may go on."""
        try:
            self._read_pods()
            may_go_on = not self.pods and self.kubectl.owners(self.name, self._place.kind)
        except (NodeError, UsageError):
            return
        if may_go_on or not all(pod.ended for pod in self.pods):
            return
        self._read_whole_log()
        if self.replay.result is not None:
            result = self._judge(self.replay.result)
        else:
            result = self._concluded(self._cause())
        self.write(result, left_objects(self.name, self.kubectl.remove_all(self.name, self._place.kind)))

    def _read_whole_log(self) -> None:
        """Read what pod 0 has printed since the last follower, as far as that takes READING seconds at most."""
        first = self._first()
        if first is None or not first.started:
            return
        self._follow(first)
        end = time.monotonic() + READING
        while self._log is not None and not self._log.is_read and time.monotonic() < end:
            self._read()
            time.sleep(0.05)

    def write(self, result: ResultDocument, left: Left) -> ResultDocument:
        """Write the result. Outputs on the pods' own disks are left out: they were removed with the pods."""
        if not self.run.read_run().spec.get("output_dir"):
            result = dataclasses.replace(result, outputs={}, unfetched={})
        return super().write(result, left)

    def hang_up(self) -> None:
        """End what reads pod 0's log."""
        if self._log is not None:
            self._log.close()

    def remove(self) -> Left:
        """Remove pods and parts; pods that do not go are removed without grace.

        A cluster that does not answer is asked again for STUCK seconds. Return what is left, by object.
        """
        reason = self.kubectl.remove_all(self.name, self._place.kind)
        end = time.monotonic() + STUCK
        hurried = False
        while True:
            try:
                pods = self.kubectl.pods(self.name)
                if reason:
                    reason = self.kubectl.remove_all(self.name, self._place.kind)
                if not pods and not reason:
                    return {}
            except KubectlError as error:
                pods = []
                reason = error.reason
            if time.monotonic() > end:
                if reason:
                    return left_objects(self.name, reason)
                if hurried:
                    return {p["metadata"]["name"]: (RemainingProcess(0, "?", "pod"),) for p in pods}
                self._stop_grace = 0
                self._ask_to_stop()
                end = time.monotonic() + 15.0
                hurried = True
            time.sleep(0.3)


def left_objects(run: str, reason: str) -> Left:
    """`left` of a result whose objects could not all be removed; empty without a reason."""
    if not reason:
        return {}
    words = f"objects with the label {RUN_LABEL}={run} may be left: {reason}"
    return {run: (RemainingProcess(0, "?", words),)}


AGAIN_AFTER = 1.0
PIECE = 16 << 10  # container runtimes cut lines there, and older kubelets write the time of each piece into the line
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(?:Z|[+-]\d\d:\d\d) ")


def without_times(text: str) -> str:
    """Return a line without the times of its further pieces (it is ASCII, so that bytes are characters)."""
    at = PIECE
    while at < len(text):
        stamp = _STAMP.match(text, at)
        if stamp is None:
            return text
        text = text[:at] + text[stamp.end() :]
        at += PIECE
    return text


class PodLog:
    """`lines` gives what has come; `since` is the time of the last line, from which another PodLog can go on."""

    def __init__(self, kubectl: Kubectl, pod: str, since: str = "") -> None:
        self.pod = pod
        self.since = since
        self._kubectl = kubectl
        self._running: ProcessLines | None = None
        self._ended_at = 0.0
        self._skip: set[str] = set()
        self.is_read = False  # kubectl came to the end of the log once

    def lines(self) -> list[str]:
        """Return new lines without their times; start kubectl (again) where it does not run."""
        if self._running is None and time.monotonic() - self._ended_at >= AGAIN_AFTER:
            self._start()
        if self._running is None:
            return []
        fresh = [self._new(line) for line in self._running.take()]
        if self._running.over:
            self._running = None
            self._ended_at = time.monotonic()
            self.is_read = True
        return [text for text in fresh if text is not None]

    def close(self) -> None:
        """End kubectl."""
        if self._running is not None:
            self._running.end()

    def _start(self) -> None:
        """Start kubectl; the kubelet keeps what is not taken yet. Where that fails it is tried again."""
        words = ["logs", self.pod, "--follow", "--timestamps", *([f"--since-time={self.since}"] if self.since else [])]
        try:
            self._running = ProcessLines(self._kubectl.argv(*words))
        except OSError:
            self._ended_at = time.monotonic()

    def _new(self, line: str) -> str | None:
        """Return the text of a line that was not given yet, else None.

        --since-time is in whole seconds: what came in that second comes again. The kubelet's own complaints stand
        among the lines without a time (`failed to create fsnotify watcher: too many open files`).
        """
        line = line.rstrip("\n")
        if not _STAMP.match(line):
            return line
        stamp, _, text = line.partition(" ")
        text = without_times(text)
        if stamp < self.since or (stamp == self.since and text in self._skip):
            return None
        if stamp != self.since:
            self.since = stamp
            self._skip = set()
        self._skip.add(text)
        return text


class Kubernetes(RemoteEngine):
    """The cluster that kubectl reaches."""

    name = "kubernetes"

    def prepare(self, resolved: Resolved) -> PodsLaunch:
        """Return the objects that a start would make."""
        return PodsLaunch(resolved.spec)

    def follow(self, run: RunDirectory, view: View) -> PodsFollower:
        """Follow the pods from here on; the log goes on where the last follower was."""
        Kubectl.require()
        place = read_place(run, PodsOfRun)
        take_control(run)
        return PodsFollower(run, place, view)

    def whereabouts(self, run: RunDirectory) -> str:
        """Return the phases of the run's pods."""
        place = read_place(run, PodsOfRun)
        items = Kubectl(place.context, place.namespace).pods(place.name)
        phases = ", ".join(f"{pod.host} {pod.phase}" for pod in read_pods(items, CONTAINER))
        return phases or f"no pod of {place.name} is left"

    def settle(self, run: RunDirectory) -> None:
        """Write the end of a run whose pods are over, with the log that pod 0 has left."""
        PodsFollower(run, read_place(run, PodsOfRun), View()).settle()


ENGINE = Kubernetes()


class PodsPlan(NamedTuple):
    """What `run --k8s --dry-run --json` prints: a command, and the objects that it would be given."""

    command: Sequence[str]
    manifests: Sequence[Document]


class PodsLaunch:
    """The objects of one run. Allranks itself travels in a ConfigMap, what is secret in Secrets."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._now = time.time()
        variables = forwarded(os.environ, ())
        settings = pod_settings(spec, read_texts(spec))
        self.job = PodJob(spec, name_of(spec, self._now), zipapp.build(), True, variables, settings)
        self._objects = manifests(self.job)

    def describe(self, as_json: bool) -> str:
        """Return the manifests, with the size of allranks in its place, and without secrets."""
        join_secret = secret_manifest(self.job, self.job.secret, {"secret": "<made at the start>"})
        shown = [join_secret]
        if self.job.hidden:
            hidden = dict.fromkeys(self.job.hidden, "<redacted>")
            shown.append(secret_manifest(self.job, self.job.secret_env, hidden))
        shown += [_without_archive(document) for document in self._objects]
        if as_json:
            return document_line(PodsPlan(("kubectl", "create", "-f", "-"), shown))
        head = ["would give this to `kubectl create -f -` and follow pod 0, and nothing was done"]
        return yaml_text(shown, head).rstrip("\n")

    def start(self, view: View) -> PodsFollower:
        """Make the objects. Raise NotStarted where the cluster refuses one: the run's end is written then.

        A Ctrl-C meanwhile removes what was made.
        """
        Kubectl.require()
        spec = self._spec
        place = PodsOfRun(
            "kubernetes",
            self.job.name,
            kind=spec.cloud.kind,
            nodes=self.job.nodes,
            namespace=spec.cloud.namespace,
            context=spec.cloud.context,
            patience=spec.limits.init_timeout,
        )
        run = create_run(spec, self.job.name, place, pod_names(self.job), self._now)
        kubectl = Kubectl(spec.cloud.context, spec.cloud.namespace)
        try:
            kubectl.create([*secret_objects(self.job, os.environ), *self._objects])
        except KubectlError as error:
            raise self._refused(run, kubectl, error) from None
        except KeyboardInterrupt:
            result = dataclasses.replace(least_result(run, CTRL_C, None), left=self._remove(kubectl))
            write_result(run, result, stopped=True)
            raise
        except AllranksError:
            shutil.rmtree(run.path, ignore_errors=True)  # kubectl's own configuration is wrong: no cluster was asked
            raise
        show_opening(run, view)
        return PodsFollower(run, place, view)

    def _refused(self, run: RunDirectory, kubectl: Kubectl, error: KubectlError) -> NotStarted:
        """Remove what was made, and write the end with the reason as its verdict."""
        finding = refusal(error.reason)
        left: Left = {}
        if error.made or not not_reached(error.reason):
            left = self._remove(kubectl)
        result = dataclasses.replace(least_result(run, NODE_FAILED, Verdict(finding, finding.id, 0.95)), left=left)
        write_result(run, result, stopped=False)
        return NotStarted(run, result)

    def _remove(self, kubectl: Kubectl) -> Left:
        return left_objects(self.job.name, kubectl.remove_all(self.job.name, self.job.spec.cloud.kind))


def secret_objects(job: PodJob, environ: Mapping[str, str]) -> list[Document]:
    """Return what the pods prove to each other, made now, and the values of hidden variables."""
    secret = secret_manifest(job, job.secret, {"secret": secrets.token_hex(32)})
    hidden = hidden_values(job.spec, job.hidden, environ)
    if not hidden:
        return [secret]
    return [secret, secret_manifest(job, job.secret_env, hidden)]


def _without_archive(document: Document) -> Document:
    if "binaryData" not in document:
        return document
    return {**document, "binaryData": {k: f"<{len(v)} bytes>" for k, v in document["binaryData"].items()}}


LARGEST_POD = 1 << 20
WANTED_POD = "Set a YAML file with a pod's metadata and spec"


def read_texts(spec: RunSpec) -> dict[str, str]:
    """{name as the user gave it: text} of --pod."""
    if spec.cloud.pod is None:
        return {}
    try:
        with Path(spec.cloud.pod).open("rb") as file:
            data = file.read(LARGEST_POD + 1)
    except OSError as error:
        raise UsageError(f"--pod {spec.cloud.pod}: {error.strerror}. {WANTED_POD}") from None
    if len(data) > LARGEST_POD:
        raise UsageError(f"--pod {spec.cloud.pod}: larger than 1 MiB. {WANTED_POD}")
    return {spec.cloud.pod: data.decode("utf-8", "replace")}
