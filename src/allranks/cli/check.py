"""allranks check: look at all nodes, compare them, say what is wrong before a run does."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from allranks.backends.plugins import all_checks
from allranks.backends.transport import Transport
from allranks.cluster import Cluster
from allranks.errors import UsageError
from allranks.findings import Finding
from allranks.gang import checking
from allranks.preflight.check import Check
from allranks.preflight.judge import of_level, table
from allranks.preflight.rank_network import Setting, explain
from allranks.report.table import counts, document, finding_lines, grouped, setting_lines, table_lines
from allranks.runs import preflight
from allranks.runs.directory import RunDirectory
from allranks.settings import RunSpec
from allranks.settings.document import from_document
from allranks.text import count_of

from . import exits
from .allocated import with_step
from .dryrun import describe_check
from .options import BEHAVIOUR, CHECKS, HOW, NETWORK, PLACES, TARGET, Text, option, split_words
from .target import find_cluster, resolve_options, say_notes


def command(
    command: Annotated[list[str] | None, typer.Argument(help="after --: the command a run would have")] = None,
    local: Annotated[int | None, option("--local", TARGET, "N virtual nodes on this machine", "N")] = None,
    hosts: Annotated[Text, option("--hosts", TARGET, "hostfile, or a list: h1,h2 or node[01-04]", "FILE|LIST")] = None,
    slurm: Annotated[bool | None, option("--slurm", TARGET, "the Slurm allocation that we are in")] = None,
    nodes: Annotated[int | None, option("--nodes", TARGET, "the first N hosts of the list", "N")] = None,
    nproc: Annotated[Text, option("--nproc", TARGET, "ranks a node would have", "K")] = None,
    level: Annotated[Text, option("--level", CHECKS, "quick (as before a run) or full (default)", "LEVEL")] = None,
    only: Annotated[list[str] | None, option("--only", CHECKS, "these checks alone (with commas)", "ID")] = None,
    allow: Annotated[list[str] | None, option("--allow", CHECKS, "a failure that is a warning here", "ID")] = None,
    data_paths: Annotated[list[str] | None, option("--data-path", CHECKS, "same data on all nodes", "PATH")] = None,
    expect_gpus: Annotated[int | None, option("--expect-gpus", CHECKS, "GPUs a node has (--nproc)", "K")] = None,
    from_: Annotated[Text, option("--from", CHECKS, "judge saved evidence again, ask no node", "FILE|RUN")] = None,
    python: Annotated[Text, option("--python", HOW, "training interpreter on the nodes", "PATH")] = None,
    guard_python: Annotated[Text, option("--guard-python", HOW, "Python >= 3.8 for allranks' guard", "PATH")] = None,
    workdir: Annotated[Text, option("--workdir", HOW, "working directory on the nodes (default: this one)")] = None,
    prelude: Annotated[Text, option("--prelude", HOW, "shell lines before the ranks: conda activate …")] = None,
    env: Annotated[list[str] | None, option("--env", HOW, "as for run", "K=V|NAME")] = None,
    ssh_options: Annotated[list[str] | None, option("--ssh-option", HOW, "as ssh's -o", "KEY=VALUE")] = None,
    network: Annotated[Text, option("--network", NETWORK, "network of the master address", "CIDR")] = None,
    master_addr: Annotated[Text, option("--master-addr", NETWORK, "default: chosen, and proved")] = None,
    master_port: Annotated[int | None, option("--master-port", NETWORK, "0: a free one (default)")] = None,
    connect_timeout: Annotated[Text, option("--connect-timeout", NETWORK, "to reach a node (12s)")] = None,
    runs_dir: Annotated[Text, option("--runs-dir", PLACES, "where its directory goes (runs)")] = None,
    node_dir: Annotated[Text, option("--node-dir", PLACES, "scratch directory on the nodes (/tmp)")] = None,
    config: Annotated[Text, option("--config", PLACES, "settings file (allranks.toml)")] = None,
    verbose: Annotated[bool, option("-v --verbose", BEHAVIOUR, "what is ok, too, and the evidence")] = False,
    dry_run: Annotated[bool, option("--dry-run", BEHAVIOUR, "print what would be looked at")] = False,
    json_: Annotated[bool, option("--json", BEHAVIOUR, "one JSON document on stdout")] = False,
) -> None:
    """Look at every node and compare them: GPUs, network, software, code, data. Nothing is changed.

    Example: allranks check --hosts hosts.txt --nproc 8 --data-path /data/train
    """
    given = {k: v for k, v in locals().items() if k not in ("config", "from_", "verbose", "json_", "dry_run")}
    given["only"], given["allow"] = split_words(only), split_words(allow)
    resolved = resolve_options(given, config)
    spec = resolved.spec
    checks = choose(spec)
    if from_ is not None:
        seen = preflight.read(Path(from_))
        names = spec.only or seen.get("checks") or list(all_checks())
        raise typer.Exit(close(seen, [c for c in all_checks().values() if c.name in names], spec, None, verbose, json_))
    cluster = find_cluster(resolved)
    say_notes(resolved, json_)
    if dry_run:
        typer.echo(describe_check(spec, cluster, checks, json_))
        raise typer.Exit(0)
    raise typer.Exit(with_step(spec, cluster, lambda reach: look(spec, cluster, checks, verbose, json_, reach)))


def choose(spec: RunSpec) -> list[Check]:
    """The checks of the level, or those named; UsageError names what there is."""
    known = all_checks()
    for name in spec.only:
        if name not in known:
            raise UsageError(f"--only {name}: there is no such check; there are {', '.join(known)}")
    chosen = of_level(known.values(), spec.level, spec.only)
    # with sync the nodes get what is here
    return [c for c in chosen if c.name in spec.only or not (spec.sync and c.group == "code")]


def look(
    spec: RunSpec, cluster: Cluster, checks: Sequence[Check], verbose: bool, json_: bool,
    transport: Transport | None = None,
) -> int:  # fmt: skip
    """Asks the nodes, and says what was found."""
    run = RunDirectory.create(Path(spec.runs_dir), "check", time.time())
    if not json_:
        what = f"{count_of(len(checks), 'check')} on {count_of(len(cluster.nodes), 'node')}"
        sys.stdout.write(f"check     {spec.level}: {what} (from {cluster.source})\n")
    progress = Progress(json_)
    seen = checking.look(spec, cluster, run, checks, progress.told, transport)
    progress.end()
    return close(seen, checks, spec, run, verbose, json_)


class Progress:
    """One line that says what is going on; on a terminal it is drawn over itself."""

    def __init__(self, silent: bool) -> None:
        self._terminal = sys.stderr.isatty() and not silent
        self._silent, self._said = silent, ""

    def told(self, what: str, done: int, of: int) -> None:
        """A step has gone on."""
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{what}: {done} of {of}")
            sys.stderr.flush()
        elif not self._silent and what != self._said:
            sys.stderr.write(f"{what} …\n")
        self._said = what

    def end(self) -> None:
        """Removes the line."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")


def close(
    seen: dict[str, Any], checks: Sequence[Check], spec: RunSpec, run: RunDirectory | None, verbose: bool, json_: bool
) -> int:
    """Judges, prints, saves the page; gives the exit code."""
    found = checking.judge_evidence(seen, checks, spec.allow)
    rows = table(seen.get("request") or {}, seen["nodes"], checks, found)
    request = seen.get("request") or {}
    explained = explain(from_document(request["spec"]), request.get("gate") or {}, seen["nodes"]) if request else {}
    directory = str(run.path) if run is not None else None
    if run is not None:
        from allranks.report.page import check_page

        page = check_page(run.name, seen, found, rows, {c.name: c.title for c in checks}, grouped(explained))
        (run.path / "report.html").write_text(page, encoding="utf-8")
    if json_:
        settings = {node: [s._asdict() for s in all_of_it] for node, all_of_it in explained.items()}
        more: dict[str, Any] = {"covered": seen.get("covered") or None, "settings": settings}
        sys.stdout.write(json.dumps(document(run.name if run else "", directory, found, rows, more)) + "\n")
    else:
        _print(seen, checks, found, rows, explained, directory, verbose)
    return exit_code(found)


def exit_code(found: Sequence[Finding]) -> int:
    """4 where a node could not be reached, 3 where a check failed."""
    failed = [f for f in found if f.status == "fail"]
    if any(f.check == "reached" for f in failed):
        return exits.NODE_FAILED
    return exits.CHECK_FAILED if failed else exits.DONE


def _print(
    seen: dict[str, Any], checks: Sequence[Check], found: Sequence[Finding], rows: dict[str, dict[str, str]],
    explained: Mapping[str, Sequence[Setting]], directory: str | None, verbose: bool,
) -> None:  # fmt: skip
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = shutil.get_terminal_size((120, 40)).columns
    lines = table_lines(rows, {c.name: c for c in checks}, width, verbose, colour)
    lines += ["", *finding_lines(found, colour, verbose)] if found else []
    lines += ["", *setting_lines(explained)] if explained else []
    if seen.get("covered"):
        lines.append(f"pairs     {seen['covered']}")
    lines.append(("" if not found else "\n") + f"result    {counts(found, rows)}")
    if directory is not None:
        lines.append(f"saved     {directory}/report.html (judge again: allranks check --from {directory})")
    sys.stdout.write("\n".join(lines) + "\n")
