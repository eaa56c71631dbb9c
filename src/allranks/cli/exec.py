"""allranks exec: one command on all nodes of a target; what they print alike is printed once."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from allranks.cluster import Cluster
from allranks.cluster.hostlist import fold
from allranks.cluster.nodes import JOINED
from allranks.engines.calls import out_of_reach, reached_nodes
from allranks.engines.reachable_nodes import HERE, find_cluster, reached
from allranks.errors import UsageError
from allranks.exitcodes import CTRL_C, DONE, NODE_FAILED, PROGRAM_FAILED, TERMINATED, code_if
from allranks.gang.execution import Executed, Execution, Job
from allranks.gang.tasks import run_loop, run_with_callbacks
from allranks.gang.transport import Transport
from allranks.protocol.codec import document_line, omit_empty
from allranks.report.terminal import clean, shows_colour
from allranks.runs.directory import RunDirectory
from allranks.runs.opening import reachable_nodes, read_from_here
from allranks.runs.questions import another_way
from allranks.settings import RunSpec
from allranks.settings.document import from_document
from allranks.settings.secrets import is_secret_name, redact_argv
from allranks.settings.table import option_name
from allranks.text import count_of, format_duration, format_size, group, join_names

from .chosen_run import find_run
from .declare import Given
from .streams import ProgressLine
from .target import resolve_options, say_notes

GRACE = 5.0  # seconds from SIGTERM to SIGKILL
SHELL = ("/bin/sh", "-c")
NAMES_NODES = ("hosts", "local", "slurm", "nodes", "cluster")  # settings


@omit_empty("signal", "error", "left_out", "left")
class NodeOutput(NamedTuple):
    """What became of the command on a node. `code` null: it did not end, was killed by `signal`, or did not begin.

    `output` lacks `left_out` bytes in its middle. `left` are processes that could not be ended.
    """

    node: str
    code: int | None
    output: str
    timed_out: bool = False
    signal: str = ""
    error: str = ""
    left_out: int = 0
    left: Sequence[str] = ()


class ExecReport(NamedTuple):
    """What `exec --json` prints: the command, the exit code, and each node's part."""

    command: Sequence[str]
    exit: int
    nodes: Sequence[NodeOutput]


def command(
    typed: Given,
    run: str | None,
    timeout: float | None,
    directory: str | None,
    config: str | None,
    runs_dir: str | None,
    dry_run: bool,
    quiet: bool,
    json_: bool,
) -> int:
    """Run the command. Return the worst exit code: 4 where a node failed, 1 where the command did, else 0."""
    words = _words(typed["command"])
    if dry_run and json_:
        raise UsageError("exec --dry-run is for people to read\nhint: leave --json out")
    # --launcher command: what a run refuses to start once a rank may run once a node
    resolved = resolve_options({**typed, "command": [], "launcher": "command"}, config)
    spec = resolved.spec
    node_dir = spec.places.node_dir
    if run is None:
        cluster = find_cluster(spec)
        reach = reached(spec, cluster)
    else:
        directory_of_run = find_run(run, runs_dir)
        of_run, cluster = _nodes_of_run(directory_of_run, typed, spec)
        node_dir = node_dir or of_run.places.node_dir
        reach = reached_nodes(directory_of_run, of_run, cluster)
    with reach as transport:
        say_notes(resolved)
        if cluster.source == HERE:
            sys.stderr.write(f"note: {HERE}\n")
        if dry_run:
            return _describe(words, cluster, transport)
        forwarded = {name: os.environ[name] for name in spec.launch.forward if name in os.environ}
        job = Job(
            f"exec-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
            words,
            env={**forwarded, **spec.launch.env},
            workdir=directory,
            node_dir=node_dir,
            timeout=timeout,
            grace=GRACE,
            connect_timeout=spec.limits.connect_timeout,
        )
        return _run(job, cluster, transport, quiet, json_)


def _nodes_of_run(run: RunDirectory, typed: Given, spec: RunSpec) -> tuple[RunSpec, Cluster]:
    """Return the settings and the nodes of a run.

    Raise UsageError where a target is named too, or they are out of reach. The connections of joined nodes need not be
    encrypted: then also for secrets.
    """
    named = next((name for name in NAMES_NODES if typed.get(name)), "")
    if named:
        raise UsageError(f"--run names the nodes, and {option_name(named)} too\nhint: leave one of them out")
    why = out_of_reach(run)
    if why:
        raise UsageError(f"{why}\nhint: {another_way(run)}")
    document = read_from_here(run)
    secret_names = [name for name in (*spec.launch.env, *spec.launch.forward) if is_secret_name(name)]
    if document.source == JOINED and secret_names:
        raise UsageError(
            f"--env {secret_names[0]}: connections of joined nodes may not be encrypted. Who listens could read it\n"
            "hint: put it into a file on the nodes, and read that in the command"
        )
    return from_document(document.spec), Cluster(tuple(reachable_nodes(document.nodes)), run.name)


def _words(typed: object) -> tuple[str, ...]:
    """Return the words of the command; one word with blanks is a line for the shell."""
    words = tuple(str(word) for word in typed) if isinstance(typed, (list, tuple)) else ()
    if not words:
        raise UsageError("the command is missing\nhint: allranks exec --hosts hosts.txt nvidia-smi -L")
    if len(words) == 1 and len(words[0].split()) > 1:
        return (*SHELL, words[0])
    return words


def _describe(words: Sequence[str], cluster: Cluster, transport: Transport) -> int:
    names = fold(node.name for node in cluster.nodes)
    sys.stdout.write(f"{shlex.join(redact_argv(list(words)))} on {count_of(len(cluster.nodes), 'node')}: {names}\n")
    for node in cluster.nodes:
        sys.stdout.write(f"  {node.name}: {shlex.join(transport.described(node))}\n")
    return DONE


def _run(job: Job, cluster: Cluster, transport: Transport, quiet: bool, json_: bool) -> int:
    progress = ProgressLine(silent=json_ or not sys.stderr.isatty())
    waiting = {node.name: None for node in cluster.nodes}

    def on_end(result: Executed) -> None:
        waiting.pop(result.node.name, None)
        if waiting:
            done = len(cluster.nodes) - len(waiting)
            progress.show(f"waiting for {join_names(list(waiting))}", done, len(cluster.nodes))

    execution = Execution(job, cluster, transport, on_end)
    ended_by = _until_over(execution)
    progress.end()
    # A failed node is worse than a failed command.
    code = ended_by or max(map(node_code, execution.results), default=DONE)
    if json_:
        nodes = [_node_output(result) for result in execution.results]
        sys.stdout.write(document_line(ExecReport(redact_argv(list(job.command)), code, nodes)) + "\n")
    else:
        _print(execution.results, job, quiet)
    return code


def _until_over(execution: Execution) -> int:
    """Run it; return 0, or the exit code of the signal that has ended it early, once all nodes have ended it."""
    terminated = False

    async def main() -> None:
        task = asyncio.current_task()

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            if task is not None:
                task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, terminate)
        await run_with_callbacks(execution.run())

    try:
        run_loop(main)
    except KeyboardInterrupt:
        return CTRL_C
    except asyncio.CancelledError:
        if not terminated:
            raise
        return TERMINATED
    return DONE


def node_code(result: Executed) -> int:
    """Return the exit code that a node's part stands for."""
    if result.failure is not None or result.left:
        return NODE_FAILED
    return code_if(result.code != 0, PROGRAM_FAILED)


def _signal_name(number: int | None) -> str:
    if number is None:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _node_output(result: Executed) -> NodeOutput:
    output = result.output
    return NodeOutput(
        result.node.name,
        result.code,
        output=(output.head + output.tail).decode("utf-8", "replace"),
        timed_out=result.timed_out,
        signal=_signal_name(result.signal),
        error=result.failure.message if result.failure is not None else "",
        left_out=output.left_out + result.dropped,
        left=result.left,
    )


# -- for people ----------------------------------------------------------------------------------------


def how_it_ended(result: Executed, timeout: float | None) -> str:
    """Say how the command ended on a node; empty for a success."""
    if result.failure is not None:
        return ""  # said on standard error, with what mends it
    if result.timed_out and timeout is not None:
        return f"ended after --timeout {format_duration(timeout)}"
    if result.signal is not None:
        return f"killed by {_signal_name(result.signal)}"
    if result.code is None:
        return "did not end"
    return f"exit {result.code}" if result.code else ""


def groups_of(results: Sequence[Executed], timeout: float | None) -> dict[tuple[str, str], list[Executed]]:
    """Group nodes with the same output and end of the command, in the order of the list."""
    return group(results, lambda result: (result.output.digest, how_it_ended(result, timeout)))


def lines_of(members: Sequence[Executed], end: str, colour: bool) -> list[str]:
    """Return the lines of one entry, each behind the nodes that it is of."""
    names = fold(result.node.name for result in members)
    first = members[0].output
    lines = _clean_lines(first.head, colour)
    missing = first.left_out + members[0].dropped
    if missing:
        lines += [f"… {format_size(missing)} not shown here", *_clean_lines(first.tail, colour)]
    if end:
        lines.append(f"({end})")
    return [f"{names}: {line}".rstrip() for line in lines]


def _clean_lines(data: bytes, colour: bool) -> list[str]:
    text = data.decode("utf-8", "replace")
    if not text:
        return []
    return [clean(line.rstrip("\r"), colour) for line in text.removesuffix("\n").split("\n")]


def _print(results: Sequence[Executed], job: Job, quiet: bool) -> None:
    silent: list[str] = []
    for (_, end), members in groups_of(results, job.timeout).items():
        failed = bool(end) or members[0].failure is not None
        if quiet and not failed:
            continue
        lines = lines_of(members, end, shows_colour(sys.stdout))
        if not lines and not failed:
            silent += [result.node.name for result in members]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    if silent and sys.stderr.isatty():
        sys.stderr.write(f"{fold(silent)}: done, without output\n")
    for result in results:
        if result.failure is not None:
            sys.stderr.write(f"{result.failure.message}\n")
            if result.failure.remedy:
                sys.stderr.write(f"  hint: {result.failure.remedy}\n")
        if result.left:
            sys.stderr.write(f"{result.node.name}: could not end {', '.join(result.left)}\n")
