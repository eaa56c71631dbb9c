"""allranks render: the files and commands for doing it without allranks, from the same settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click

from allranks.cluster import Cluster, Node
from allranks.engines import zipapp
from allranks.engines.kubernetes.engine import read_texts
from allranks.engines.reachable_nodes import find_cluster
from allranks.errors import UsageError
from allranks.exitcodes import DONE
from allranks.plan.environment import forwarded
from allranks.plan.launchers import LAUNCHERS
from allranks.plan.launchers.config_keys import launcher_settings
from allranks.plan.launchers.training_command import ranks_asked_for
from allranks.plan.plan import make_plan
from allranks.plan.ranks import Plan
from allranks.plan.render import RENDERERS, Rendered, RenderRequest
from allranks.preflight.pasted_figures import refuse_contradictions
from allranks.protocol.codec import document_line, omit_empty
from allranks.runs.regular import ANYONE, replacing
from allranks.settings import RunSpec
from allranks.settings.command_line import used
from allranks.text import join_words
from allranks.unpacked import own_command

from .declare import Given
from .target import FILE_LIMIT, require_command, resolve_options, say_notes


def command(what: str, typed: Given, config: str | None, output: str | None, force: bool, json_: bool) -> int:
    """Write, or show, the files."""
    options = dict(typed)
    if what in LAUNCHERS:
        if options.get("roles_file") or options.get("role"):
            raise one_role(what)
        options["launcher"] = what
    resolved = resolve_options(options, config, renderer=what)
    require_command(resolved, f"allranks render {what}")
    if resolved.spec.launch.roles and not RENDERERS[what].roles:
        raise one_role(what)
    placeholders = used(resolved.spec.launch.command)
    if placeholders and RENDERERS[what].hosts:
        raise UsageError(
            f"the command has {placeholders[0]}, which only `allranks run` can fill. Write the value itself"
        )
    say_notes(resolved)
    files = RENDERERS[what].render(make_request(resolved.spec, what))
    if output is not None:
        write(files, Path(output), force)
    if json_:
        sizes = {name: len(text) for name, text in files.items() if isinstance(text, bytes)}
        texts = {name: text for name, text in files.items() if isinstance(text, str)}
        click.echo(document_line(RenderedDocument(texts, sizes, output)))
    elif output is not None:
        click.echo("\n".join(f"wrote {Path(output) / name}" for name in files))
    else:
        shown = {
            name: text if isinstance(text, str) else f"({len(text):,} bytes that --output writes)\n"
            for name, text in files.items()
        }
        click.echo("\n".join(f"==> {name} <==\n{text}" for name, text in shown.items()).rstrip("\n"))
    return DONE


def one_role(what: str) -> UsageError:
    """Make the error of a renderer that knows no roles."""
    taking = join_words([f"`render {name}`" for name, renderer in RENDERERS.items() if renderer.roles], "or")
    return UsageError(f"`render {what}` writes one role. {taking} takes several")


def make_request(spec: RunSpec, what: str) -> RenderRequest:
    """Make what the renderer needs. Raise UsageError where the number of ranks of a node is not known."""
    variables = forwarded(os.environ, ())
    if RENDERERS[what].joins:
        return RenderRequest(spec, Plan(()), os.getcwd(), read_texts(spec), archive=zipapp.build(), forwarded=variables)
    cluster = render_cluster(spec, what)
    needed = RENDERERS[what].hosts and ranks_asked_for(spec) is None
    unknown = [n.name for n in cluster.nodes if needed and spec.launch.nproc is None and n.slots is None]
    if unknown:
        raise UsageError(f"{unknown[0]}: how many ranks? `render` does not look at the nodes. Set --nproc, or slots=K")
    refuse_contradictions(spec, cluster)
    call = own_command()
    return RenderRequest(
        spec, make_plan(spec, cluster, {}), os.getcwd(), named_texts(spec), allranks=call, forwarded=variables
    )


def named_texts(spec: RunSpec) -> dict[str, str]:
    """Read the launcher's configurations that the command names, as they are on this machine."""
    named = launcher_settings(spec)
    texts = {}
    for path in filter(None, [named["accelerate"], *named["deepspeed"]]):
        try:
            with Path(path).expanduser().open("rb") as file:
                texts[path] = file.read(FILE_LIMIT).decode("utf-8", "replace")
        except FileNotFoundError:
            continue  # the renderer that needs it says so
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}. Give a file that can be read") from None
    return texts


def render_cluster(spec: RunSpec, what: str) -> Cluster:
    """Return the target's nodes; where only their number matters, that many without an address of their own."""
    if spec.target.hosts is not None or spec.target.local is not None:
        return find_cluster(spec)
    if RENDERERS[what].hosts:
        raise UsageError(f"render {what}: which nodes? set --hosts FILE or --hosts node[01-02]")
    count = spec.target.nodes or 1
    return Cluster(tuple(Node(i, f"node{i}", f"node{i}") for i in range(count)), "--nodes")


def write(files: Rendered, directory: Path, force: bool) -> None:
    """All files or none where one is there already."""
    there = [name for name in files if (directory / name).exists()]
    if there and not force:
        raise UsageError(f"{directory / there[0]} exists. --force replaces it, or set another --output")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = directory / name
            is_script = isinstance(text, str) and text.startswith("#!")
            with replacing(path, ANYONE | 0o111 if is_script else ANYONE) as file:
                file.write(text if isinstance(text, bytes) else text.encode())
    except OSError as error:
        raise UsageError(f"--output {directory}: {error.strerror}. Set a directory that you may write to") from None


@omit_empty("bytes")
class RenderedDocument(NamedTuple):
    """What `--json` prints: texts by name, of other files the sizes, and the directory they were written to."""

    files: Mapping[str, str]
    bytes: Mapping[str, int]
    written: str | None
