"""kubectl as a subprocess: objects are made, looked at and removed by the label of their run.

kubectl and not the Python client: users have it, it knows every login plug-in and proxy of their kubeconfig, and
what it does can be done again by hand. Secrets go to its standard input, never into its arguments.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from shutil import which

from allranks.errors import NodeError, UsageError
from allranks.plan.render.pod_spec import RUN_LABEL, secret_names
from allranks.plan.render.podsettings import QUEUE
from allranks.protocol.jsontext import DecodeError, read_object
from allranks.runs.documents import Document

PATIENCE = 60.0  # seconds for one call
LONGEST_REASON = 600  # characters
LAST_LINES = 5  # of a pod's log
ANSWER_LIMIT = 256 << 20  # characters of what kubectl lists: etcd holds objects of 1.5 MB, and a run has some thousands
KINDS = {
    "job": "jobs.batch",
    "jobset": "jobsets.jobset.x-k8s.io",
    "trainjob": "trainjobs.trainer.kubeflow.org,trainingruntimes.trainer.kubeflow.org",
    "pods": "",
}


# klog's own lines on standard error: severity, date, time, thread, file (k8s.io/klog/v2, header format)
_KLOG = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ ")
# What kubectl writes around the reason where it could not even read the API's types (k8s.io/kubectl, pkg/validation)
_VALIDATION = re.compile(
    r'^error: error validating "[^"]*": error validating data: (?:failed to download openapi: )?'
    r"|; if you choose to ignore these errors, turn validation off with --validate=false$"
)
# kubectl's own configuration: no cluster was asked (k8s.io/client-go, tools/clientcmd)
KUBECONFIG = re.compile(r'context "[^"]*" does not exist|error loading config file|^error: invalid configuration')
_UNKNOWN_KIND = re.compile(r"doesn't have a resource type|no matches for kind")
_CREATED = re.compile(r"^([^\s/]{1,300}/[^\s/]{1,300}) created$", re.M)


class KubectlError(NodeError):
    """kubectl failed. `made` has the objects that it had created before."""

    def __init__(self, message: str, reason: str = "", made: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reason = reason or message
        self.made = made


def reason_of(stderr: str) -> str:
    """Return the reason in kubectl's words, without its log lines and without advice to skip validation."""
    lines = [line for line in stderr.splitlines() if line.strip() and not _KLOG.match(line)]
    text = " ".join(" ".join(lines or stderr.splitlines()).split())
    return _VALIDATION.sub("", text)[:LONGEST_REASON]


class Kubectl:
    """One cluster and namespace."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        self._words = ["kubectl"]
        for option, value in (("--context", context), ("--namespace", namespace)):
            if value:
                self._words += [option, value]

    @staticmethod
    def require() -> None:
        """Raise UsageError where kubectl is not on PATH."""
        if which("kubectl") is None:
            raise UsageError("--k8s needs kubectl on PATH. `allranks render kubernetes` writes the files without it")

    def argv(self, *words: str) -> list[str]:
        """Return the command as a person would type it."""
        return [*self._words, *words]

    def call(self, *words: str, stdin: str | None = None, patience: float = PATIENCE) -> str:
        """Call kubectl and return its standard output; raise KubectlError with its last words."""
        argv = [*self.argv(*words), f"--request-timeout={patience:g}s"]
        try:
            done = subprocess.run(
                argv, input=stdin or "", capture_output=True, text=True, errors="replace", timeout=patience + 10
            )
        except subprocess.TimeoutExpired:
            raise KubectlError(
                f"kubectl {words[0]}: no answer in {patience:g} s", f"no answer in {patience:g} s"
            ) from None
        except OSError as error:
            raise KubectlError(f"kubectl: {error.strerror}") from None
        if done.returncode:
            reason = reason_of(done.stderr) or f"exit code {done.returncode}"
            if KUBECONFIG.search(reason):
                raise UsageError(f"kubectl: {reason}. hint: kubectl config get-contexts")
            made = tuple(_CREATED.findall(done.stdout)) if words[0] == "create" else ()
            raise KubectlError(f"kubectl {words[0]}: {reason}", reason, made)
        return str(done.stdout)

    def create(self, documents: Sequence[Document]) -> None:
        """Make objects that are not there. `apply` would keep a copy in an annotation, which is too small for it."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
        self.call("create", "-f", "-", stdin=text)

    def items(self, kind: str, *words: str) -> list[Document]:
        """List objects of a kind; raise KubectlError where kubectl printed something else."""
        try:
            listed = read_object(self.call("get", kind, "-o", "json", *words), ANSWER_LIMIT).get("items") or []
        except DecodeError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            raise KubectlError(f"kubectl get {kind}: its answer is not a list of objects in JSON")
        return listed

    def pods(self, run: str) -> list[Document]:
        """List the run's pods."""
        return self.items("pods", "-l", f"{RUN_LABEL}={run}")

    def owners(self, run: str, kind: str) -> list[Document]:
        """List the object that makes the run's pods, while it exists; none of a run that is bare pods."""
        owner = KINDS[kind].partition(",")[0]
        if not owner:
            return []
        return self.items(owner, "-l", f"{RUN_LABEL}={run}")

    def queue_holding(self, run: str, kind: str) -> str | None:
        """Return the queue of a run whose object is suspended, "" where it names none; else None."""
        for item in self.owners(run, kind):
            if (item.get("spec") or {}).get("suspend"):
                return str(((item.get("metadata") or {}).get("labels") or {}).get(QUEUE) or "")
        return None

    def events(self, run: str) -> list[Document]:
        """List warnings about objects whose names begin with the run's; none where they may not be read."""
        try:
            warnings = self.items("events", "--field-selector", "type=Warning")
        except KubectlError:
            return []
        return [e for e in warnings if str((e.get("involvedObject") or {}).get("name") or "").startswith(run)]

    def last_words(self, pod: str) -> tuple[str, ...]:
        """Return the last lines of a pod's log; none where it cannot be read."""
        try:
            text = self.call("logs", pod, f"--tail={LAST_LINES}", patience=10.0)
        except (KubectlError, UsageError):
            return ()
        return tuple(line[:300] for line in text.splitlines() if line.strip())[-LAST_LINES:]

    def remove(self, run: str, kind: str, grace: int | None = None) -> None:
        """Begin to remove everything of the run. `grace`: seconds that pods have; None: their own."""
        label = ["-l", f"{RUN_LABEL}={run}", "--ignore-not-found", "--wait=false"]
        hurry = [] if grace is None else [f"--grace-period={grace}"]
        if grace == 0:
            hurry.append("--force")
        if KINDS[kind]:
            cascade = "--cascade=background" if hurry else "--cascade=foreground"
            self.call("delete", KINDS[kind], *label, cascade)
        if hurry or not KINDS[kind]:
            self.call("delete", "pods", *label, *hurry)

    def remove_parts(self, run: str) -> None:
        """Remove what the pods needed, by name: by label it takes the right to list every Secret."""
        parts = [f"service/{run}", f"configmap/{run}", *(f"secret/{name}" for name in secret_names(run))]
        self.call("delete", *parts, "--ignore-not-found", "--wait=false")

    def remove_all(self, run: str, kind: str) -> str:
        """Remove every object of the run, each whatever became of the others. Returns why one may be left, or ""."""
        reason = ""
        try:
            self.remove(run, kind)
        except KubectlError as error:
            if not _UNKNOWN_KIND.search(error.reason):
                reason = error.reason
        try:
            self.remove_parts(run)
        except KubectlError as error:
            reason = error.reason
        return reason
