"""Kubernetes as an engine: pods that run `allranks join`, driven and followed through kubectl."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from allranks.diagnose.pod_states import not_reached, read_pods, refusal
from allranks.engines.remote import RemoteEngine, read_place
from allranks.errors import AllranksError, UsageError
from allranks.exitcodes import NODE_FAILED
from allranks.findings import Verdict
from allranks.plan.environment import forwarded
from allranks.plan.render.kubernetes import manifests, pod_names, pod_settings, secret_manifest
from allranks.plan.render.pod_spec import CONTAINER, PodJob
from allranks.plan.render.yamltext import yaml_text
from allranks.protocol.codec import document_line
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document, Left
from allranks.runs.opening import take_control
from allranks.runs.result import least_result, write_result
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved

from .. import NotStarted, zipapp
from ..following import show_opening
from ..remote import create_run, hidden_values, name_of
from .following import PodsFollower, PodsOfRun, left_objects
from .kubectl import Kubectl, KubectlError


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
        variables = forwarded(dict(os.environ), ())
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
        """Make the objects. Raise NotStarted where the cluster refuses one: the run's end is written then."""
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
            left = left_objects(self.job.name, kubectl.remove_all(self.job.name, self.job.spec.cloud.kind))
        result = dataclasses.replace(least_result(run, NODE_FAILED, Verdict(finding, finding.id, 0.95)), left=left)
        write_result(run, result, stopped=False)
        return NotStarted(run, result)


def secret_objects(job: PodJob, environ: Mapping[str, str]) -> list[Document]:
    """Return what the pods prove to each other, made now, and the values of hidden variables."""
    secret = secret_manifest(job, job.secret, {"secret": secrets.token_hex(32)})
    hidden = hidden_values(job.spec, job.variables, job.hidden, environ)
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
