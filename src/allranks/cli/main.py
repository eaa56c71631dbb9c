"""The `allranks` command: finds the verb, runs it, turns errors into one sentence and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys

import allranks
from allranks import early
from allranks.errors import REPORT_TO, AllranksError
from allranks.exitcodes import INTERNAL

from . import exits, streams

VERBS = {
    "run": "start training on every node, watch it, end all of it if any part fails",
    "check": "look at all nodes, compare them, say what is wrong before a run does",
    "test": "collective tests, and which node or link is to blame",
    "diagnose": "why a run failed, from its directory or from any logs",
    "report": "a page of a run to read, or with --bundle a zip to send, without secrets",
    "status": "nodes and ranks of a run: states, steps, last output",
    "logs": "output of all ranks, merged",
    "attach": "follow a run again, or take it over",
    "stop": "end a run in order",
    "data": "plan: steps and time of an epoch; audit: is the data really split?",
    "render": "the files and commands for torchrun, Slurm, Kubernetes, …, from the same settings",
    "overlap": "how much communication hides behind computation, from profiler traces",
    "clean": "remove old run directories, or what runs left on the nodes",
    "join": "the same command on every node, no ssh: any scheduler, two terminals",
    "init": "write a commented allranks.toml",
}
LINUX_ONLY = ("run", "check", "test", "join", "attach", "stop", "clean")  # they use /proc, pidfd and prctl
OF_A_RUN = ("run", "join", "attach")  # SIGUSR1 and SIGUSR2 are for the ranks from their first moment on
USAGE = """usage: allranks VERB [options]          allranks VERB --help

{verbs}

example: allranks run --hosts hosts.txt --nproc 8 -- train.py --epochs 3
exit codes: 0 done, 1 the program failed, 2 usage, 3 a check failed, 4 a node, link or service failed,
5 a hang, 70 allranks itself failed, 130 Ctrl-C, 143 SIGTERM or stop"""


def main() -> None:
    """Entry point."""
    streams.guard_streams()
    try:
        code = _main()
    except streams.OutputLost:
        code = exits.DONE
    raise SystemExit(streams.exit_code(code))


def _main() -> int:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE.format(verbs="\n".join(f"  {name:<8} {text}" for name, text in VERBS.items())))
        return exits.DONE if words else exits.USAGE
    if words[0] in ("--version", "-V"):
        print(f"allranks {allranks.__version__}")
        return exits.DONE
    if words[0] in LINUX_ONLY and words[1:2] != ["--help"]:
        streams.go_on_without_output()
    return run_verb(words[0], words[1:])


def run_verb(verb: str, words: list[str]) -> int:
    """Runs one verb; every AllranksError ends here."""
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    if verb not in VERBS:
        return _fail(f"no verb {verb!r}; there are {', '.join(VERBS)}", exits.USAGE, as_json)
    if verb in LINUX_ONLY and sys.platform != "linux" and words[:1] != ["--help"]:
        return _fail(_needs_linux(verb), exits.USAGE, as_json)
    import typer  # here: `allranks --help` needs none of it

    if verb in OF_A_RUN:
        from allranks.node.processes import survive_user_signals  # as typer

        survive_user_signals()

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    app.command(name=verb)(importlib.import_module(f"allranks.cli.{verb}").command)
    command = typer.main.get_command(app)
    try:
        early.end()
        code = command.main(args=words, prog_name=f"allranks {verb}", standalone_mode=False)
        if code == exits.CTRL_C and early.was_interrupted():
            return _fail("interrupted", exits.CTRL_C, as_json)
        return int(code or 0)
    except AllranksError as error:
        return _fail(str(error), error.exit_code, as_json)
    except KeyboardInterrupt:
        return _fail("interrupted", exits.CTRL_C, as_json)
    except typer.Abort:
        return _fail("left undone", exits.CTRL_C, as_json)
    except Exception as error:
        message = _usage_message(error)
        if message is None:
            return _failed_itself(error, as_json)
        return _fail(f"{message}\n(allranks {verb} --help; the training command goes after --)", exits.USAGE, as_json)


def _needs_linux(verb: str) -> str:
    """Why this machine cannot start runs, or end them."""
    system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
    where = "start it on a login node, or in a Linux container"
    return f"`allranks {verb}` needs Linux, and this machine is {system}; {where}"


def _failed_itself(error: Exception, as_json: bool) -> int:
    """A defect of allranks: one sentence, with where the traceback is and where to send it."""
    import tempfile  # here, as few commands end so

    from allranks.runs.internal import CAUSE, said, traceback_of

    if isinstance(error, BrokenPipeError):
        raise error  # whoever read our output has gone: no defect
    try:
        with tempfile.NamedTemporaryFile("w", prefix="allranks-internal-error-", suffix=".txt", delete=False) as file:
            file.write(traceback_of(error))
        where = f", with {file.name}"
    except OSError:
        where = f":\n{traceback_of(error)}"
    message = f"allranks itself failed: {said(error)}; report it {REPORT_TO}{where}"
    return _fail(message, INTERNAL, as_json, CAUSE)


def _usage_message(error: Exception) -> str | None:
    """The text of a wrong option, as the option parser words it."""
    words = getattr(error, "format_message", None)
    return str(words()) if callable(words) else None


def _fail(message: str, code: int, as_json: bool, cause: str = "") -> int:
    if as_json:
        print(json.dumps({"schema": 1, "error": message, "exit": code, **({"cause": cause} if cause else {})}))
    print(f"allranks: {message}", file=sys.stderr)
    return code
