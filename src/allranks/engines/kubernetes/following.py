"""A run in pods, from here: waits for them with reasons, follows pod 0, finds out why they ended, removes them."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from allranks.diagnose.causes import exit_code
from allranks.diagnose.pods import IMAGE, Pod, hopeless, read_pods, suspended, troubles, waiting
from allranks.errors import NodeError, UsageError
from allranks.exitcodes import CTRL_C, DONE, NODE_FAILED, PROGRAM_FAILED, TERMINATED
from allranks.findings import Finding, Verdict, Where
from allranks.plan.render.pods import CONTAINER, RUN_LABEL
from allranks.runs.directory import RunDirectory
from allranks.runs.replay import Replay, Shown
from allranks.runs.result import untold_result, write_result

from .kubectl import Kubectl, KubectlError
from .podlog import PodLog

Document = dict[str, Any]
LOOK_EVERY = 2.0
LOOK_AT_MOST = 10.0
PATIENCE = 6.0  # seconds that a pod which has ended may take to show its last lines
STUCK = 60.0  # beyond the pods' grace: then they are removed without one
# What node 0 says where it can't know: Kubernetes' own reason is nearer to the cause.
OUTER = frozenset(
    {
        "unknown",
        "rendezvous-timeout",
        "peer-died",
        "node-network-down",
        "master-unreachable",
        "host-out-of-memory",
        "dataloader-worker-killed",
        "rank-killed",
    }
)


class Following:
    """One run; `turn` is called a few times a second until it gives the result."""

    def __init__(self, run: RunDirectory, where: Document, view: Shown) -> None:
        self.run = run
        self.view = view
        self.name, self.kind, self.nodes = str(where["name"]), str(where["kind"]), int(where["nodes"])
        self.kubectl = Kubectl(where.get("context"), where.get("namespace"))
        self.replay = Replay(run, view)
        self.stopping = False
        self.pods: list[Pod] = []
        self.events: list[Document] = []
        self._log: PodLog | None = None
        self._followed, self._since = "", str((run.read_document("follow.json") or {}).get("since") or "")
        self._next = 0.0
        self._pause = LOOK_EVERY
        self._said = ""
        self._waited_for: set[str] = set()
        self._alone_since: float | None = None
        self._ended_at = self._image_since = 0.0
        self._patience = float(where.get("patience") or 600.0)
        self._lost = ""
        self._stop_since = 0.0
        self._stop_grace: int | None = None
        self._stop_asked = True

    # -- following ---------------------------------------------------------------------------------

    def turn(self) -> Document | None:
        """Shows what is new; the result once the run is over."""
        now = time.monotonic()
        self._read()
        if now >= self._next or self.replay.result is not None:
            self._look(now)
        if self.replay.result is None:
            return self._over(now)
        self._ended_at = self._ended_at or now
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

    def _look(self, now: float) -> None:
        """Asks the cluster; one that is away for a while is no end of the run."""
        try:
            self.pods = read_pods(self.kubectl.pods(self.name), CONTAINER)
            self.events = self.kubectl.events(self.name)
            queue = self.kubectl.queue_holding(self.name, self.kind) if not self.pods and not self.stopping else None
            self._lost = ""
        except (NodeError, UsageError) as error:
            queue = None
            self._lost = str(error)
        if not self._stop_asked and not self._lost:
            self._ask_to_stop()
        if self.stopping:
            said = self._lost
        elif queue is not None:
            said = suspended(self.nodes, queue)
        else:
            said = self._lost or waiting(self.pods, self.events, self.nodes)
        self._pause = LOOK_EVERY if said or said != self._said else min(LOOK_AT_MOST, self._pause * 1.5)
        if said and said not in self._waited_for:  # reasons take turns; each is said once
            self._waited_for.add(said)
            self._say(said)
        elif self._said and not said and not self.stopping:
            self._waited_for.clear()
            self._say(f"all {self.nodes} pods have started" if self.nodes > 1 else "the pod has started")
        self._said = said
        self._next = now + self._pause
        first = self._first()
        if first is not None and first.started and first.uid != self._followed:
            self._follow(first)

    def _first(self) -> Pod | None:
        return next((p for p in self.pods if p.index == 0), None)

    def _follow(self, first: Pod) -> None:
        since = self._since if not self._followed else ""
        if self._log is not None:
            self._log.close()
        self._followed, self._log = first.uid, PodLog(self.kubectl, first.name, since)

    def _say(self, message: str) -> None:
        event = {"t": time.time(), "event": "job", "job": self.name, "message": message}
        self.run.append_event(event)
        self.view.event(event)

    # -- the end -----------------------------------------------------------------------------------

    def _over(self, now: float) -> Document | None:
        """Pod 0 has ended, or never can start, and has said nothing of a result."""
        if self._lost:
            given_up = self.stopping and now - self._stop_since > STUCK
            return self._concluded(None) if given_up else None
        never = hopeless(self.pods, self.events, self._image_wait(now)) if not self.stopping else None
        if never is not None:
            return self._concluded(never)
        first = self._first()
        gone = first is None if self._followed or self.stopping else False
        if not gone and not (first is not None and first.ended) and not self._all_over():
            self._alone_since = None
            return None
        self._alone_since = self._alone_since or now
        if now - self._alone_since < PATIENCE and not (self.stopping and not self._followed):
            return None
        return self._concluded(self._cause())

    def _image_wait(self, now: float) -> bool:
        """An image has been waited for as long as the ranks may take to start."""
        waits = any(p.why in IMAGE for p in self.pods)
        self._image_since = (self._image_since or now) if waits else 0.0
        return waits and now - self._image_since > self._patience

    def _all_over(self) -> bool:
        return bool(self.pods) and all(p.ended for p in self.pods)

    def _cause(self) -> Finding | None:
        """Why there is no result: Kubernetes' reason, else the last words of pod 0, or of another where it is gone."""
        if self.stopping:
            return None
        found = troubles(self.pods, self.events)
        if found:
            return found[0]
        pod = self._first() or next(iter(self.pods), None)
        if pod is None:
            return Finding(
                "unknown",
                "fail",
                f"the pods of {self.name} are gone and said nothing",
                "somebody removed them, or the machine that had them went away",
                check="kubernetes",
            )
        words = tuple(self.replay.said[-5:]) or self.kubectl.last_words(pod.name)
        code = f"exit code {pod.exit_code}" if pod.exit_code is not None else pod.phase.lower()
        return Finding(
            "unknown",
            "fail",
            f"{pod.host} ended ({code}) without a result",
            f"kubectl logs {pod.name}",
            Where(node=pod.host),
            words,
            "kubernetes",
        )

    def _concluded(self, finding: Finding | None) -> Document:
        verdict = None
        if finding is not None:
            verdict = Verdict(finding, finding.id, 0.4 if finding.id == "unknown" else 0.95)
        failed = any(p.exit_code for p in self.pods)
        code = exit_code(verdict, "stop" if self.stopping else None, failed)
        if verdict is not None and code not in (PROGRAM_FAILED, NODE_FAILED):
            code = NODE_FAILED
        return untold_result(self.run, code, verdict)

    def _is_outer(self) -> bool:
        """Node 0 saw that something ended from outside of the program."""
        verdict = (self.replay.result or {}).get("verdict")
        return isinstance(verdict, dict) and verdict.get("cause") in OUTER and not self.stopping

    def _judge(self, result: Document) -> Document:
        """Node 0's result, with Kubernetes' reason where that is nearer to the cause."""
        if not self._is_outer():
            return result
        verdict = result["verdict"]
        blamed = (verdict.get("where") or {}).get("node")
        found = [f for f in troubles(self.pods, self.events) if f.where.node in (blamed, None) or blamed is None]
        if not found:
            return result
        told = dataclasses.replace(found[0], evidence=(*found[0].evidence, str(verdict.get("message"))))
        nearer = Verdict(told, told.id, 0.95, tuple(verdict.get("victims") or ()), result.get("attempt") or 0)
        code = NODE_FAILED if result["exit"] == DONE else result["exit"]
        return {**result, "verdict": nearer.to_json(), "exit": code}

    # -- ending ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Once: ranks may save. Twice: now."""
        first = not self.stopping
        self.stopping = True
        self._next = 0.0
        self._stop_since = time.monotonic()
        self._stop_grace = None if first else 0
        self._say("stopping: ranks have their time to save" if first else "ending at once")
        self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        """Remove the pods; a cluster that does not answer is asked again at the next look."""
        try:
            self.kubectl.remove(self.name, self.kind, self._stop_grace)
            self._stop_asked = True
        except KubectlError as error:
            self._stop_asked = False
            self._lost = str(error)

    def finish(self, result: Document, reason: str = "") -> Document:
        """Writes the result down and removes all that the run made; says what is left."""
        self.replay.close()
        left = self.clear(STUCK)
        if self._log is not None:
            self._log.close()
        if self.stopping and result["exit"] in (TERMINATED, NODE_FAILED, PROGRAM_FAILED):
            result = {**result, "exit": CTRL_C if reason == "ctrl-c" else TERMINATED, "verdict": None}
        kept = bool(((self.run.read_document("run.json") or {}).get("spec") or {}).get("output_dir"))
        gone: Document = {} if kept else {"outputs": {}, "unfetched": {}}  # the pods' own disks are no more
        found = {**result, **gone, "left": left}
        write_result(self.run, found, self.stopping)
        return found

    def clear(self, patience: float) -> Document:
        """Remove pods and parts; pods that do not go are removed without grace.

        A cluster that does not answer is asked again for `patience` seconds. Returns {object: what is left of it}.
        """
        reason = self.kubectl.remove_all(self.name, self.kind)
        end = time.monotonic() + patience
        hurried = False
        while True:
            try:
                pods = self.kubectl.pods(self.name)
                if reason:
                    reason = self.kubectl.remove_all(self.name, self.kind)
                if not pods and not reason:
                    return {}
            except KubectlError as error:
                pods = []
                reason = error.said
            if time.monotonic() > end:
                if reason:
                    return left_objects(self.name, reason)
                if hurried:
                    return {p["metadata"]["name"]: [{"pid": 0, "state": "?", "command": "pod"}] for p in pods}
                self._stop_grace = 0
                self._ask_to_stop()
                end = time.monotonic() + 15.0
                hurried = True
            time.sleep(0.3)


def left_objects(run: str, reason: str) -> Document:
    """`left` of a result whose objects could not all be removed; empty without a reason."""
    if not reason:
        return {}
    words = f"objects with the label {RUN_LABEL}={run} may be left: {reason}"
    return {run: [{"pid": 0, "state": "?", "command": words}]}
