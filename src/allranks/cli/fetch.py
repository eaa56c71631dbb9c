"""allranks fetch: the files that ranks have written, from the nodes into the run directory."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from allranks.cluster import Cluster
from allranks.engines import settle
from allranks.engines.calls import out_of_reach, reached_nodes
from allranks.errors import UsageError
from allranks.exitcodes import DONE, NODE_FAILED, code_if
from allranks.gang.fetching import FetchedFiles, Fetching, NodeFetch
from allranks.gang.tasks import run_loop, run_with_callbacks
from allranks.protocol.codec import document_line, omit_empty, spread
from allranks.protocol.messages import OutputFile
from allranks.protocol.run_facts import OutputsTemporary, of_kind
from allranks.report.terminal import clean
from allranks.runs.directory import RunDirectory, node_folder
from allranks.runs.fetched import merge as merge_trees
from allranks.runs.opening import reachable_nodes, read_from_here
from allranks.settings.document import from_document
from allranks.text import count_of, format_size

from .chosen_run import find_run
from .streams import ProgressLine

MOST_NAMED = 10  # files that are named of a node
MERGED = "merged"  # below the place of the files: those of all nodes in one tree
_FOLDER = re.compile(r"node_\d\d+_.*", re.DOTALL)
_GLOB = re.compile(r"[*?\[]")


@spread("came")
@omit_empty("error")
class FetchedNode(NamedTuple):
    """What came of a node. `listed`: what the pattern matches, with --dry-run."""

    node: str
    source: str
    directory: str
    came: FetchedFiles
    listed: Sequence[OutputFile] = ()
    error: str = ""


@omit_empty("merged", "differing")
class FetchReport(NamedTuple):
    """What `fetch --json` prints. `merged`: the tree of --merge; `differing`: paths with other content elsewhere."""

    run: str
    exit: int
    nodes: Sequence[FetchedNode]
    dry_run: bool
    merged: str = ""
    differing: Sequence[str] = ()


def command(
    run: str | None,
    pattern: str | None,
    output: str | None,
    merge: bool,
    runs_dir: str | None,
    dry_run: bool,
    json_: bool,
) -> int:
    """Fetch. Return 4 where a node or a file failed, else 0."""
    if run is not None and pattern is None and _GLOB.search(run):
        run, pattern = None, run
    run_dir = find_run(run, runs_dir)
    settle(run_dir, time.time())
    why = out_of_reach(run_dir)
    if why:
        where = "; ".join(f"{node}: {path}" for node, path in sorted(_sources(run_dir)[0].items()))
        kept = f". Its files are in {where}" if where else ""
        raise UsageError(f"{why}{kept}\nhint: start it with --output-dir on a shared disk")
    landing = Path(output) if output is not None else run_dir.outputs
    nodes = to_fetch(run_dir, landing)
    if not nodes:
        report = FetchReport(run_dir.name, DONE, [], dry_run)
        words = f"{run_dir.name}: no node has outputs that are not in {run_dir.outputs}"
        print(document_line(report) if json_ else words)
        return DONE
    spec = from_document(run_dir.read_run().spec)
    cluster = Cluster(tuple(node.node for node in nodes), run_dir.name)
    connect_timeout = spec.limits.connect_timeout
    progress = ProgressLine(silent=json_ or not sys.stderr.isatty())
    done: list[str] = []

    def on_end(node: NodeFetch) -> None:
        done.append(node.node.name)
        progress.show("fetching", len(done), len(nodes))

    with reached_nodes(run_dir, spec, cluster) as transport:
        fetching = Fetching(nodes, transport, pattern, connect_timeout, on_end)
        try:
            run_loop(lambda: run_with_callbacks(fetching.run(only_list=dry_run)))
        finally:
            progress.end()
    code = code_if(any(node.failure or node.came.failed or node.came.refused for node in nodes), NODE_FAILED)
    tree = landing / MERGED if merge and not dry_run else None
    differing = _merge(run_dir, nodes, tree) if tree is not None else []
    if json_:
        fetched = [_fetched(node, dry_run) for node in nodes]
        print(document_line(FetchReport(run_dir.name, code, fetched, dry_run, str(tree or ""), differing)))
    else:
        _print(nodes, dry_run, pattern)
        if tree is not None and tree.is_dir():
            _say_merged(nodes, tree, differing)
    return code


def _fetched(node: NodeFetch, dry_run: bool) -> FetchedNode:
    listed = node.listed if dry_run else []
    return FetchedNode(node.node.name, node.root, str(node.landing), node.came, listed, node.failure)


def _merge(run: RunDirectory, nodes: Sequence[NodeFetch], tree: Path) -> list[str]:
    """Put what came of all nodes into one tree, with what a node on this host has written here; return what differs."""
    came = [(node.landing, [f.path for f in node.listed if f.path not in node.came.failed]) for node in nodes]
    here = run.outputs
    own = [path.relative_to(here) for path in here.rglob("*") if path.is_file() and not path.is_symlink()]
    kept = [str(path) for path in own if path.parts[0] != MERGED and not _FOLDER.fullmatch(path.parts[0])]
    try:
        return merge_trees(
            [(here, kept), *((top, [p for p in paths if (top / p).is_file()]) for top, paths in came)], tree
        )
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or tree}: {error.strerror}") from None


def _say_merged(nodes: Sequence[NodeFetch], tree: Path, differing: Sequence[str]) -> None:
    _say(f"all nodes  -> {tree}")
    for path in differing[:MOST_NAMED]:
        those = [node for node in nodes if any(file.path == path for file in node.listed)]
        others = ", ".join(str(node.landing / path) for node in those[1:])
        _say(f"  {path} differs: that of {those[0].node.name} is there, others are {others}" if others else f"  {path}")
    if len(differing) > MOST_NAMED:
        _say(f"  and {count_of(len(differing) - MOST_NAMED, 'other file')} that differ")


def _sources(run: RunDirectory) -> tuple[Mapping[str, str], bool]:
    """Return where the outputs of each node lie, and whether the end of the run says so: else as its ranks started."""
    result = run.read_result()
    if result is not None and result.outputs:
        return result.outputs, True
    temporary = [noted.fact.nodes for noted in of_kind(run.read_facts(all_roles=True)[0], OutputsTemporary)]
    return temporary[-1] if temporary else {}, False


def to_fetch(run: RunDirectory, landing: Path) -> list[NodeFetch]:
    """List the nodes with outputs that are not here already; of a shared directory one node gives all."""
    document = read_from_here(run)
    shared = from_document(document.spec).places.output_dir
    here = os.path.realpath(run.outputs)
    sources, is_kept = _sources(run)
    nodes: list[NodeFetch] = []
    for node in reachable_nodes(document.nodes):
        source = sources.get(node.name)
        if source is None or not source.startswith("/") or "\0" in source:
            continue
        if node.is_local and os.path.realpath(source) == here:
            continue
        if shared is not None and source == shared and nodes:
            continue
        nodes.append(NodeFetch(node, source, landing / node_folder(node.index, node.name), is_kept))
    return nodes


def _print(nodes: Sequence[NodeFetch], dry_run: bool, pattern: str | None) -> None:
    for node in nodes:
        name = node.node.name
        if dry_run:
            total = sum(file.size for file in node.listed)
            _say(f"{name}  {count_of(len(node.listed), 'file')}, {format_size(total)} in {node.root}")
            for file in node.listed:
                _say(f"  {format_size(file.size):>10}  {file.path}")
        elif node.came.files:
            there = f", {count_of(node.came.present, 'file')} were here already" if node.came.present else ""
            resumed = f", {format_size(node.resumed_bytes)} from an earlier fetch" if node.resumed_bytes else ""
            came = f"{count_of(node.came.files - node.came.present, 'file')}, {format_size(node.came.bytes)}"
            _say(f"{name}  {came}{resumed}{there} -> {node.landing}")
        elif not node.failure and not node.came.failed:
            _say(f"{name}  nothing that {pattern} matches" if pattern else f"{name}  nothing")
        if node.came.skipped:
            _say(f"{name}  left out: {count_of(node.came.skipped, 'link or other entry', 'links or other entries')}")
        _say_failures(node)


def _say_failures(node: NodeFetch) -> None:
    named = {**node.came.refused, **node.came.failed}
    for path, why in list(named.items())[:MOST_NAMED]:
        sys.stderr.write(clean(f"{node.node.name}: {path}: {why}", colour=False) + "\n")
    if len(named) > MOST_NAMED:
        sys.stderr.write(f"{node.node.name}: and {count_of(len(named) - MOST_NAMED, 'other file')}\n")
    if node.failure:
        sys.stderr.write(clean(node.failure, colour=False) + "\n")
        hint = node.remedy or "the same command goes on where it has stopped"
        sys.stderr.write(f"  hint: {hint}\n")


def _say(line: str) -> None:
    sys.stdout.write(clean(line, colour=False) + "\n")
