"""run --k8s and --sky: the controller is node 0's `join`; here its events and output become a run directory."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import click

import allranks
from allranks.diagnose.pods import not_reached, read_pods, refusal
from allranks.engines import zipapp
from allranks.engines.kubernetes.following import Following, left_objects
from allranks.engines.kubernetes.kubectl import Kubectl, KubectlError
from allranks.errors import AllranksError
from allranks.exitcodes import CTRL_C, DONE, NODE_FAILED, TERMINATED
from allranks.findings import Verdict
from allranks.gang import session as sessions
from allranks.plan.environment import forwarded
from allranks.plan.render.kubernetes import manifests, pod_names, pod_settings, secret_manifest
from allranks.plan.render.pods import CONTAINER, Job, object_name
from allranks.plan.render.yamltext import yaml_text
from allranks.report.live import JsonView, View
from allranks.runs.directory import RunDirectory
from allranks.runs.result import untold_result, write_result
from allranks.settings import RunSpec
from allranks.settings.document import to_document
from allranks.settings.secrets import redact_argv

from .podfile import read_texts
from .run import leave_page
from .signals import Signals

Document = dict[str, Any]
PAUSE = 0.2
LONGEST = 19  # of the name, so that the time of the run and four digits of chance still fit


class Follows(Protocol):
    """What an engine's run can do from here."""

    stopping: bool

    def turn(self) -> Document | None: ...
    def stop(self) -> None: ...
    def finish(self, result: Document, reason: str = "") -> Document: ...


def run_afar(spec: RunSpec, json_: bool, dry_run: bool) -> int:
    """Starts and follows; gives the exit code."""
    if spec.target.sky:
        from .cloud import run_sky

        return run_sky(spec, json_, dry_run)
    if not dry_run:
        Kubectl.require()
    now = time.time()
    job = make_job(spec, name_of(spec, now))
    objects = manifests(job)
    if dry_run:
        click.echo(described(job, objects, json_))
        return DONE
    where = {
        "engine": "kubernetes",
        "name": job.name,
        "kind": spec.cloud.kind,
        "nodes": job.nodes,
        "namespace": spec.cloud.namespace,
        "context": spec.cloud.context,
        "patience": spec.limits.init_timeout,
    }
    run = create_run(spec, where, pod_names(job), now)
    kubectl = Kubectl(spec.cloud.context, spec.cloud.namespace)
    try:
        kubectl.create([*secret_objects(job, os.environ), *objects])
    except KubectlError as error:
        return not_made(run, kubectl, job, error, json_)
    except AllranksError:
        shutil.rmtree(run.path, ignore_errors=True)  # kubectl's own configuration is wrong: no cluster was asked
        raise
    return watch(run, spec, lambda view: Following(run, where, view), json_)


def name_of(spec: RunSpec, now: float) -> str:
    """The objects' name: the run's, as short as it must be, with what tells it from others' in the namespace."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{object_name(spec.places.name)[:LONGEST].strip('-')}-{stamp}-{secrets.token_hex(2)}"


def make_job(spec: RunSpec, name: str) -> Job:
    """The run as Kubernetes will see it, with the variables that go from here to other hosts."""
    variables = forwarded(dict(os.environ), ())
    return Job(spec, name, zipapp.build(), True, variables, pod_settings(spec, read_texts(spec)))


def secret_objects(job: Job, environ: Any) -> list[Document]:
    """What the pods prove to each other, made now, and the values of hidden variables."""
    found = [secret_manifest(job, job.secret, {"secret": secrets.token_hex(32)})]
    values = {
        **{n: environ[n] for n in job.spec.launch.forward if n in environ},
        **job.variables,
        **job.spec.launch.env,
    }
    hidden = {name: values[name] for name in job.hidden if name in values}
    return [*found, *([secret_manifest(job, job.secret_env, hidden)] if hidden else [])]


def described(job: Job, objects: list[Document], json_: bool) -> str:
    """--dry-run: the manifests, allranks itself by its size."""
    shown = [_without_archive(o) for o in objects]
    hidden = {"secret": "<made at the start>"}
    made = [secret_manifest(job, job.secret, hidden)]
    made += [secret_manifest(job, job.secret_env, dict.fromkeys(job.hidden, "<redacted>"))] if job.hidden else []
    if json_:
        return json.dumps({"schema": 1, "command": ["kubectl", "create", "-f", "-"], "manifests": [*made, *shown]})
    head = ["would give this to `kubectl create -f -` and follow pod 0; nothing was done"]
    return yaml_text([*made, *shown], head).rstrip("\n")


def _without_archive(document: Document) -> Document:
    if "binaryData" not in document:
        return document
    return {**document, "binaryData": {k: f"<{len(v)} bytes>" for k, v in document["binaryData"].items()}}


def create_run(spec: RunSpec, where: Document, names: list[str], now: float) -> RunDirectory:
    """A run directory as `run` makes it; `engine` says where the run really is."""
    run = RunDirectory.create(Path(spec.places.runs_dir), spec.places.name, now)
    nodes = [{"name": name, "host": name, "index": i} for i, name in enumerate(names)]
    (run.path / "outputs").mkdir(mode=0o700, exist_ok=True)
    document = {
        "run": run.name,
        "uid": where["name"],
        "started": now,
        "command": redact_argv(spec.launch.command),
        "spec": to_document(spec),
        "nodes": nodes,
        "source": where["engine"],
        "workdir": os.getcwd(),
        "versions": {"allranks": allranks.__version__},
        "controller": sessions.controller_identity(),
        "engine": where,
    }
    run.write_document("run.json", document)
    run.append_event({"t": time.time(), "event": "run-start", "run": run.name, "uid": where["name"]})
    waiting = [{"name": n["name"], "index": n["index"], "state": "connecting", "ranks": []} for n in nodes]
    status = {
        "run": run.name,
        "state": "starting",
        "t": time.time(),
        "attempt": 0,
        "master": None,
        "world_size": None,
        "nodes": waiting,
    }
    run.write_document("status.json", status)
    return run


def not_made(run: RunDirectory, kubectl: Kubectl, job: Job, error: KubectlError, json_: bool) -> int:
    """End a run whose objects could not all be made: remove what was made, and say why in a verdict."""
    finding = refusal(error.said)
    left: Document = {}
    if error.made or not not_reached(error.said):
        left = left_objects(job.name, kubectl.remove_all(job.name, job.spec.cloud.kind))
    result = {**untold_result(run, NODE_FAILED, Verdict(finding, finding.id, 0.95)), "left": left}
    write_result(run, result, stopped=False)
    view: View | JsonView = JsonView() if json_ else View(fold=job.spec.output.fold)
    said_end(run, view, result, json_)
    return NODE_FAILED


# -- following -----------------------------------------------------------------------------------------


def watch(run: RunDirectory, spec: RunSpec, make: Any, json_: bool) -> int:
    """Follows here, or leaves a daemon that does."""
    view: View | JsonView = JsonView() if json_ else View(fold=spec.output.fold)
    document = run.read_document("run.json") or {}
    view.opening({**document, "directory": str(run.path), "launcher": spec.launch.launcher})
    if not spec.output.detach:
        return follow(run, make(view), view, json_)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sessions.detach_stdio(run.path / "controller.log")
            take(run)
            view = View(fold=spec.output.fold)
            code = follow(run, make(view), view, False)
        finally:
            os._exit(code)
    if json_:
        document = {"schema": 1, "run": run.name, "directory": str(run.path), "detached": True, "exit": 0}
        click.echo(json.dumps(document))
    else:
        click.echo(f"detached: allranks status {run.name} · logs -f · attach · stop")
    return DONE


def take(run: RunDirectory) -> None:
    """This process is the one that follows it."""
    document = run.read_document("run.json") or {}
    run.write_document("run.json", {**document, "controller": sessions.controller_identity()})


def follow(run: RunDirectory, engine: Follows, view: View | JsonView, json_: bool, stop: bool = False) -> int:
    """Until the result; Ctrl-C and SIGTERM stop the run, a lost terminal leaves it alone."""
    signals = Signals()
    reason = ""
    lost_signals: set[str] = set()
    try:
        if stop:
            engine.stop()
        while True:
            result = engine.turn()
            view.tick(time.time())
            if result is not None:
                break
            wanted = signals.take()
            if wanted == "leave":
                print(f"\nleft; it goes on: allranks status {run.name} · attach · stop", file=sys.stderr)
                return DONE
            if wanted is not None:
                reason = reason or wanted
                engine.stop()
            for name in signals.take_for_the_ranks():
                if name not in lost_signals:
                    lost_signals.add(name)
                    message = f"SIG{name} is not passed on: {run.engine['engine']} runs take no signals from here"
                    view.event({"t": time.time(), "event": "note", "message": message})
            time.sleep(PAUSE)
        result = engine.finish(result, reason)
    finally:
        signals.restore()
    said_end(run, view, result, json_)
    return int(result["exit"])


def said_end(run: RunDirectory, view: View | JsonView, result: Document, json_: bool) -> None:
    """Print the result of a run, and leave its page."""
    if json_:
        sys.stdout.write(json.dumps({"schema": 1, **result}) + "\n")
    view.closing(result, result.get("verdict"))
    leave_page(run, int(result["exit"]), json_)


def adopt(run: RunDirectory, view: View | JsonView) -> Follows:
    """Follows a run again whose follower is gone."""
    take(run)
    where = run.engine
    if where["engine"] == "kubernetes":
        return Following(run, where, view)
    from .cloud import adopt_sky

    return adopt_sky(run, where, view)


def stop_afar(run: RunDirectory, json_: bool) -> Document:
    """`stop` where nobody follows the run any more."""
    if not json_:
        click.echo(f"nobody follows {run.name} any more: ending it in {run.engine['engine']}")
    view = JsonView() if json_ else View()
    code = follow(run, adopt(run, view), view, False, stop=True)
    left = (run.read_document("result.json") or {}).get("left")
    return {"run": run.name, "how": "engine", "code": 4 if left or code not in (DONE, CTRL_C, TERMINATED) else 0}


def look_afar(run: RunDirectory) -> str:
    """What the engine says of it now, in a line."""
    where = run.engine
    if where["engine"] != "kubernetes":
        from .cloud import look_sky

        return look_sky(where)
    try:
        items = Kubectl(where.get("context"), where.get("namespace")).pods(str(where["name"]))
    except AllranksError as error:
        return str(error)
    found = read_pods(items, CONTAINER)
    return ", ".join(f"{p.host} {p.phase}" for p in found) or f"no pod of {where['name']} is left"
