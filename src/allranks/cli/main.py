"""The `allranks` command: finds the verb, runs it, turns errors into one sentence and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import allranks
from allranks import early, exitcodes
from allranks.errors import REPORT_TO, AllranksError, RunIsElsewhere
from allranks.exitcodes import INTERNAL

from . import streams

if TYPE_CHECKING:
    import click

VERBS = {
    "run": "start training on every node, watch it, end all of it if a part fails",
    "join": "the same command on every node, no ssh: any scheduler, two terminals",
    "check": "look at all nodes and compare them: what is wrong before a run",
    "test": "collective tests, and which node or link is to blame",
    "diagnose": "why a run failed, from its directory or from any logs",
    "explain": "what a cause, a check or a state means, and what to do",
    "report": "a page of a run to read, or a zip to send, without secrets",
    "ps": "the runs that go on, and the newest that are over",
    "status": "nodes and ranks of a run: states, steps, last output",
    "top": "a run at a glance, each second: ranks, nodes, warnings, events",
    "stacks": "what every rank of a run does now: its stack, step and collective",
    "profile": "a trace of a rank that goes on, and what hides behind computation",
    "logs": "output of all ranks, merged",
    "attach": "follow a run again, or take it over",
    "stop": "end a run in order",
    "clean": "remove old run directories, or what runs left on the nodes",
    "render": "files for torchrun, Slurm, Kubernetes, …, from the same settings",
    "init": "write a commented allranks.toml",
    "fetch": "bring the files that ranks have written from the nodes",
    "exec": "a command on every node, its output folded where nodes say the same",
    "nodes": "what earlier runs have found of each node",
    "data": "steps and time of an epoch, and whether the data is split",
    "overlap": "communication that hides behind computation, from profiler traces",
}
FIRST_RARE = "fetch"  # from here on: what few need, and not each day
# They use /proc, pidfd and prctl.
LINUX_ONLY = ("run", "check", "test", "join", "attach", "stop", "clean", "exec", "fetch", "stacks", "profile")
OF_A_RUN = ("run", "join", "attach")  # SIGUSR1 and SIGUSR2 are for the ranks from their first moment on
ASKS_FOR_HELP = {"-h", "--help", "--help-all"}
COMPLETION = "_ALLRANKS_COMPLETE"
# What allranks.pyz does without, by the module that is imported.
PACKAGES = {"jinja2": "Jinja2", "markupsafe": "Jinja2", "yaml": "PyYAML", "tomli": "tomli"}
USAGE = """usage: allranks VERB [options]     allranks help VERB     allranks --version

{verbs}

example: allranks run --hosts hosts.txt --nproc 8 train.py --epochs 3
exit codes: 0 done, 1 the program failed, 2 usage, 3 a check failed,
  4 a node, link or service failed, 5 a hang, 70 allranks itself failed,
  130 Ctrl-C, 143 SIGTERM or stop
completion: eval "$(_ALLRANKS_COMPLETE=bash_source allranks)"
  (zsh_source and fish_source for those shells)"""


def main(owns_process: bool = False) -> None:
    """Run the command of sys.argv, and raise SystemExit with its exit code.

    `owns_process`: the process ends with the command, so SIGINT is ignored from then on."""
    streams.agent_streams()
    code = exitcodes.CTRL_C
    try:
        try:
            code = _main()
        except streams.OutputLost:
            code = exitcodes.DONE
        code = streams.exit_code(code)
        if owns_process:
            early.over()
    except KeyboardInterrupt:
        pass  # the verb's code stands. Python writes out what is left: if that blocks, Ctrl-C still ends it
    raise SystemExit(code)


def _main() -> int:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if COMPLETION in os.environ:
        return complete(os.environ[COMPLETION])
    words = sys.argv[1:]
    if words[:1] == ["help"]:  # stands for --help behind the verb, or behind one of its commands
        asked = [word for word in words if word in ASKS_FOR_HELP]
        words = [*(word for word in words[1:] if word not in ASKS_FOR_HELP), *(asked[:1] or ["--help"])]
    if not words or words[0] in ASKS_FOR_HELP:
        lines = [f"  {verb:<8} {what}" for verb, what in VERBS.items()]
        lines.insert(list(VERBS).index(FIRST_RARE), "\nmore rarely:")
        print(USAGE.format(verbs="\n".join(lines)))
        return exitcodes.DONE if words else exitcodes.USAGE
    if words[0] in ("--version", "-V"):
        print(f"allranks {allranks.__version__}")
        return exitcodes.DONE
    if words[0] in LINUX_ONLY and not set(words[1:2]) & ASKS_FOR_HELP:
        streams.go_on_without_output()
    return run_verb(words[0], words[1:])


def _path(error: click.UsageError, verb: str) -> str:
    if error.ctx is not None:
        return error.ctx.command_path
    return f"allranks {verb}"


def load(verb: str) -> click.Command:
    """Make the command of a verb. The module that does its work is not imported."""
    from .commands import COMMANDS  # imported late: `allranks --help` needs no Click
    from .declare import DeclaredCommand, DeclaredGroup, DeclaredVerbs

    declared = COMMANDS[verb]
    if isinstance(declared, DeclaredVerbs):
        return DeclaredGroup(declared)
    return DeclaredCommand(declared)


def run_verb(verb: str, words: Sequence[str]) -> int:
    """Run one verb; every AllranksError ends here."""
    if verb not in VERBS:
        from .mistakes import unknown_verb  # imported late: few words are not verbs

        return _fail(unknown_verb(verb, words, VERBS), exitcodes.USAGE, "--json" in words)
    if verb in LINUX_ONLY and sys.platform != "linux" and not set(words[:1]) & ASKS_FOR_HELP:
        system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        where = "Start it on a login node, or in a Linux container"
        message = f"`allranks {verb}` needs Linux, and this machine is {system}. {where}"
        return _fail(message, exitcodes.USAGE, "--json" in words)
    import click  # imported late: `allranks --help` needs none of it

    if verb in OF_A_RUN and not set(words[:1]) & ASKS_FOR_HELP:
        from allranks.agent.processes import survive_user_signals  # imported late: other verbs leave signals alone

        survive_user_signals()
    from .declare import AskedLine

    asked = AskedLine()
    try:
        command = load(verb)
        with command.make_context(f"allranks {verb}", list(words), obj=asked) as context:
            return int(command.invoke(context) or exitcodes.DONE)
    except RunIsElsewhere as run:
        return _say_there(verb, words, run, asked.as_json)
    except AllranksError as error:
        return _fail(str(error), error.exit_code, asked.as_json)
    except KeyboardInterrupt:
        return _fail("interrupted", exitcodes.CTRL_C, asked.as_json)
    except click.Abort:
        return _fail("left undone", exitcodes.CTRL_C, asked.as_json)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.NoSuchOption as error:
        from .mistakes import unknown_option  # imported late: few command lines have one

        asked_of = command
        if error.ctx is not None:
            asked_of = error.ctx.command
        message = unknown_option(error.option_name, _path(error, verb), getattr(asked_of, "declared", None))
        return _fail(message, exitcodes.USAGE, asked.as_json)
    except click.UsageError as error:
        hint = f"{_path(error, verb)} --help"
        return _fail(f"{error.format_message()}\nhint: {hint}", exitcodes.USAGE, asked.as_json)
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            return _failed_itself(error, asked.as_json)
        message = f"`allranks {verb}` needs the package {PACKAGES[error.name]} for this, and it is not installed"
        hint = f"{sys.executable} -m pip install {PACKAGES[error.name]}"
        return _fail(f"{message}\nhint: {hint}", exitcodes.USAGE, asked.as_json)
    except Exception as error:
        return _failed_itself(error, asked.as_json)


def _say_there(verb: str, words: Sequence[str], run: RunIsElsewhere, as_json: bool) -> int:
    from allranks.engines.elsewhere import say_there, words_there  # imported late: most runs are here

    try:
        return say_there(verb, words_there(words, run), run)
    except AllranksError as error:
        return _fail(str(error), error.exit_code, as_json)
    except KeyboardInterrupt:
        return _fail("interrupted", exitcodes.CTRL_C, as_json)


def _failed_itself(error: Exception, as_json: bool) -> int:
    """Report a defect of allranks in one sentence, with where the traceback is and where to send it. Return 70."""
    import tempfile  # here, as few commands end so

    from allranks.agent.link import describe_error
    from allranks.runs.result import CAUSE, traceback_of

    if isinstance(error, BrokenPipeError):
        raise error  # whoever read our output has ended: no defect
    try:
        with tempfile.NamedTemporaryFile(prefix="allranks-internal-error-", suffix=".txt", delete=False) as file:
            file.write(traceback_of(error).encode("utf-8", "backslashreplace"))
        where = f", with {file.name}"
    except OSError:
        where = f":\n{traceback_of(error)}"
    message = f"allranks itself failed: {describe_error(error)}. Report it {REPORT_TO}{where}"
    return _fail(message, INTERNAL, as_json, CAUSE)


def complete(instruction: str) -> int:
    """Print a shell's completion script, or the words that it asks for."""
    from click.shell_completion import shell_complete  # imported late, as the next: only a shell asks

    from .declare import AllVerbs

    return shell_complete(AllVerbs(VERBS, load), {}, "allranks", COMPLETION, instruction)


def _fail(message: str, code: int, as_json: bool, cause: str = "") -> int:
    if as_json:
        from allranks.protocol.codec import document_line  # imported late: few commands fail
        from allranks.runs.documents import ErrorDocument

        print(document_line(ErrorDocument(message, code, cause)))
    print(f"allranks: {message}", file=sys.stderr)
    return code
