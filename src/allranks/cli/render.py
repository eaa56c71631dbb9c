"""allranks render: the files and commands for doing it without allranks, from the same settings."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from allranks.backends import zipapp
from allranks.cluster import Cluster, Node
from allranks.errors import UsageError
from allranks.plan.environment import forwarded
from allranks.plan.launchers import LAUNCHERS
from allranks.plan.launchers.settings import launcher_settings
from allranks.plan.plan import make_plan
from allranks.plan.ranks import Plan
from allranks.plan.render import RENDERERS, Rendered, Request
from allranks.settings import RunSpec
from allranks.settings.fields import option_name
from allranks.settings.layers import Resolved

from .engines import engine_options, inside, pods
from .options import HOW, NETWORK, PLACES, TARGET, Text, option
from .podfile import read_texts
from .target import FILE_LIMIT, find_cluster, require_command, resolve_options, say_notes

WHAT = "; ".join(f"{name}: {renderer.title}" for name, renderer in RENDERERS.items())


@engine_options(pods, inside)
def command(
    what: Annotated[str, typer.Argument(metavar="|".join(RENDERERS), help=WHAT)],
    command: Annotated[list[str] | None, typer.Argument(help="after --: the training command")] = None,
    local: Annotated[int | None, option("--local", TARGET, "N nodes, all this machine", "N")] = None,
    hosts: Annotated[Text, option("--hosts", TARGET, "hostfile, or a list: h1,h2 or node[01-04]", "FILE|LIST")] = None,
    nodes: Annotated[int | None, option("--nodes --nnodes", TARGET, "the first N hosts, or how many", "N")] = None,
    partition: Annotated[Text, option("--partition", TARGET, "of a Slurm job", "NAME")] = None,
    sbatch: Annotated[list[str] | None, option("--sbatch", TARGET, "further options of sbatch", "OPTIONS")] = None,
    nproc: Annotated[Text, option("--nproc", TARGET, "ranks a node (default: slots of the hostfile)", "K")] = None,
    python: Annotated[Text, option("--python", HOW, "training interpreter on the nodes", "PATH")] = None,
    workdir: Annotated[Text, option("--workdir", HOW, "working directory on the nodes (default: this one)")] = None,
    prelude: Annotated[Text, option("--prelude", HOW, "shell lines before the command: conda activate …")] = None,
    wrap: Annotated[Text, option("--wrap", HOW, "goes around the command: 'apptainer exec --nv IMG'")] = None,
    env: Annotated[list[str] | None, option("--env", HOW, "set K=V, or forward NAME from there", "K=V|NAME")] = None,
    master_addr: Annotated[Text, option("--master-addr", NETWORK, "default: the first host")] = None,
    master_port: Annotated[int | None, option("--master-port", NETWORK, "default: 29500")] = None,
    name: Annotated[Text, option("--name", PLACES, "of the run")] = None,
    retries: Annotated[int | None, option("--retries", HOW, "further attempts after a failure (0)")] = None,
    config: Annotated[Text, option("--config", PLACES, "settings file (allranks.toml)")] = None,
    output: Annotated[Text, option("--output", PLACES, "write the files here (default: show them)", "DIR")] = None,
    force: Annotated[bool, option("--force", PLACES, "replace files that are there")] = False,
    json_: Annotated[bool, option("--json", PLACES, "one JSON document on stdout: {files: {name: text}}")] = False,
    **engines: Any,
) -> None:
    """Write what one would run on each node without allranks: scripts, configurations, manifests.

    Example: allranks render torchrun --hosts hosts.txt --nproc 8 --output launch -- train.py --epochs 3
    """
    given = {k: v for k, v in locals().items() if k not in ("what", "config", "output", "force", "json_", "engines")}
    given.update(engines)
    if what not in RENDERERS:
        raise UsageError(f"render {what}: there is no such renderer; there are {', '.join(RENDERERS)}")
    if what in LAUNCHERS:
        refuse_inside(given, what)
        given["launcher"] = what
    resolved = resolve_options(given, config)
    require_command(resolved, f"allranks render {what}")
    say_notes(resolved, json_)
    files = RENDERERS[what].render(make_request(resolved, what))
    if output is not None:
        write(files, Path(output), force)
    typer.echo(json.dumps(as_document(files, output)) if json_ else said(files, output))


def refuse_inside(given: Mapping[str, Any], what: str) -> None:
    """UsageError for options of allranks where no command of allranks is written that could take them."""
    for name in inspect.signature(inside).parameters:
        if given.get(name):
            raise UsageError(f"{option_name(name)}: render {what} writes no command of allranks; leave it out")


def make_request(resolved: Resolved, what: str) -> Request:
    """What the renderer gets: the ranks of every node are known, or it is a usage error."""
    spec = resolved.spec
    variables = forwarded(os.environ, ())
    if RENDERERS[what].joins:
        return Request(spec, Plan(()), os.getcwd(), read_texts(spec), archive=zipapp.build(), forwarded=variables)
    cluster = render_cluster(resolved, what)
    needed = RENDERERS[what].ranks
    unknown = [n.name for n in cluster.nodes if needed and spec.nproc is None and n.slots is None]
    if unknown:
        raise UsageError(f"{unknown[0]}: how many ranks? nobody looks at the nodes here; set --nproc, or slots=K")
    call = (sys.executable, "-m", "allranks")
    return Request(
        spec, make_plan(spec, cluster, {}), os.getcwd(), named_texts(spec), allranks=call, forwarded=variables
    )


def named_texts(spec: RunSpec) -> dict[str, str]:
    """The launcher's configurations that the command names, as they are here."""
    named = launcher_settings(spec)
    texts = {}
    for path in filter(None, [named["accelerate"], *named["deepspeed"]]):
        try:
            with Path(path).expanduser().open("rb") as file:
                texts[path] = file.read(FILE_LIMIT).decode("utf-8", "replace")
        except FileNotFoundError:
            continue  # the renderer that needs it says so
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; give a file that can be read") from None
    return texts


def render_cluster(resolved: Resolved, what: str) -> Cluster:
    """The target's nodes; where only their number matters, that many without an address of their own."""
    spec: RunSpec = resolved.spec
    if spec.hosts is not None or spec.local is not None:
        return find_cluster(resolved)
    if RENDERERS[what].hosts:
        raise UsageError(f"render {what}: which nodes? set --hosts FILE or --hosts node[01-02]")
    count = spec.nodes or 1
    return Cluster(tuple(Node(i, f"node{i}", f"node{i}") for i in range(count)), "--nodes")


def write(files: Rendered, directory: Path, force: bool) -> None:
    """All files or none where one is there already."""
    there = [name for name in files if (directory / name).exists()]
    if there and not force:
        raise UsageError(f"{directory / there[0]} exists; --force replaces it, or set another --output")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = directory / name
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            if isinstance(text, str) and text.startswith("#!"):
                path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise UsageError(f"--output {directory}: {error.strerror}; set a directory that you may write to") from None


def said(files: Rendered, output: str | None) -> str:
    """The files' names where they are written, else all of their text."""
    if output is not None:
        return "\n".join(f"wrote {Path(output) / name}" for name in files)
    return "\n".join(f"==> {name} <==\n{_shown(text)}" for name, text in files.items()).rstrip("\n")


def _shown(text: str | bytes) -> str:
    return text if isinstance(text, str) else f"({len(text):,} bytes that --output writes)\n"


def as_document(files: Rendered, output: str | None) -> dict[str, Any]:
    """--json; of what nobody reads the sizes."""
    sizes = {name: len(text) for name, text in files.items() if isinstance(text, bytes)}
    texts = {name: text for name, text in files.items() if isinstance(text, str)}
    return {"schema": 1, "files": texts, **({"bytes": sizes} if sizes else {}), "written": output}
