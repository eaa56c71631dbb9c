"""The prelude: the user's shell lines, run in bash, and the environment that they leave.

A command of the prelude itself that fails ends it. What fails inside a file, a function or an evaluated text that it
uses does not: scripts of conda and of environment modules fail inwardly all the time, and say by their own exit
status how it went. bash(1), `trap`: conditions, `!` and all but the last command of `&&`, `||` and pipelines raise no
ERR; functions and subshells inherit none of the traps; a sourced file inherits ERR and is followed by RETURN, and
DEBUG is off while it runs.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Dict, Optional, Sequence

from allranks.protocol.processes import Ran
from allranks.protocol.records import NamedTuple

from .bounded_commands import run_command
from .files import find_program

SECONDS = 25.0
TAIL = 2000  # characters of its last words
DUMP = "import os, sys, json; os.fdopen(int(sys.argv[1]), 'wb').write(json.dumps(dict(os.environ)).encode())"

# Bash runs the handlers' own commands under DEBUG too, so the last command but one is the one that failed. `$_`, which
# the user's next command may read, is put back, and carries a mark: nothing has run since a command failed inside.
TRAPS = r"""
__allranks_fd=$ALLRANKS_FD __allranks_text=$ALLRANKS_TEXT __allranks_python=$ALLRANKS_PYTHON
__allranks_dump=$ALLRANKS_DUMP
unset ALLRANKS_FD ALLRANKS_TEXT ALLRANKS_PYTHON ALLRANKS_DUMP ALLRANKS_TRAPS
__allranks_began= __allranks_before= __allranks_word= __allranks_mark=
__allranks_source= __allranks_status=0 __allranks_file=
__allranks_returned() {
  __allranks_status=$1 __allranks_word=$2
  case $2 in
    allranks:failed) __allranks_source=failed ;;
    allranks:condition) __allranks_source=condition ;;
    *) __allranks_file=
       if [ "$1" = 0 ]; then __allranks_source=returned; else __allranks_source=condition; fi ;;
  esac
}
__allranks_failed() {
  local code=$1 line=$2 command=$3 began=$4 depth=$5 word=$6 source=
  if [ "$depth" = 0 ] && [ "$BASH_SUBSHELL" = 0 ]; then
    case $command in
      "eval "*|"( "*) __allranks_has "$command" || command=$began ;;
      *) command=$began ;;
    esac
  fi
  case $command in
    "source "*|". "*|"\\. "*|"builtin source "*|"builtin . "*)
      if [ "$__allranks_source" = condition ] && [ "$__allranks_status" = "$code" ]; then source=condition; fi
      case $word in /*) ;; *) word=$PWD/$word ;; esac
      if [ -z "$__allranks_file" ]; then __allranks_file=$word; fi ;;
  esac
  if [ "$depth" != 0 ] || [ "$BASH_SUBSHELL" != 0 ]; then
    if [ -n "$source" ]; then __allranks_mark=allranks:condition; else __allranks_mark=allranks:failed; fi
    return 0
  fi
  __allranks_mark=$6
  case $__allranks_text in *eval*) __allranks_has "$command" || return 0 ;; esac
  printf '%s\0' "${source:-failed}" "$code" "$line" "$command" "$__allranks_file" >&"$__allranks_fd"
  if [ -z "$source" ]; then exit "$code"; fi
}
__allranks_has() {
  case $__allranks_text in *"${1//[[:space:]]/}"*) return 0 ;; esac
  return 1
}
trap '__allranks_word=$_ __allranks_before=$__allranks_began __allranks_began=$BASH_COMMAND
  : "$__allranks_word"' DEBUG
trap '__allranks_returned "$?" "$_"; : "$__allranks_word"' RETURN
trap '__allranks_failed "$?" "$LINENO" "$BASH_COMMAND" "$__allranks_before" "${#BASH_SOURCE[@]}" "$_"
  : "$__allranks_mark"' ERR
"""
FIRST = 'eval "$ALLRANKS_TRAPS"; '
LAST = """

trap - DEBUG RETURN ERR
"$__allranks_python" -I -S -c "$__allranks_dump" "$__allranks_fd"
"""


class PreludeResult(NamedTuple):
    """`environment` is None where `error` says why; `remarks` are what it went on after."""

    environment: Optional[Dict[str, str]]
    error: str = ""
    remarks: Sequence[str] = ()


def run_prelude(prelude: str, environment: Dict[str, str], workdir: Optional[str]) -> PreludeResult:
    """Run the prelude in the working directory, where that exists, and read the environment after it."""
    if find_program("bash", path=environment.get("PATH", os.defpath)) is None:
        return PreludeResult(None, "--prelude needs bash, which is not on PATH of this node")
    import tempfile  # late: 2 ms, and many runs have no prelude

    with tempfile.TemporaryFile() as reports:
        variables = {
            "ALLRANKS_FD": str(reports.fileno()),
            "ALLRANKS_TEXT": "".join(prelude.split()),
            "ALLRANKS_TRAPS": TRAPS,
            "ALLRANKS_PYTHON": sys.executable,
            "ALLRANKS_DUMP": DUMP,
        }
        where = workdir if workdir and os.path.isdir(workdir) else None
        words = ["bash", "-c", FIRST + prelude + LAST]
        ended = run_command(words, SECONDS, -4 * TAIL, {**environment, **variables}, where, kept_fd=reports.fileno())
        reports.seek(0)
        return _read(ended, reports.read())


def _read(ended: Ran, said: bytes) -> PreludeResult:
    """Read what the traps have said: kind, code, line, command and file of each failure, then the environment."""
    *fields, rest = said.split(b"\0")
    words = [field.decode("utf-8", "replace") for field in fields]
    last_words = (ended.err.strip() or ended.out.strip())[-TAIL:]
    if ended.code is None:
        return PreludeResult(None, _with("the prelude did not finish within %g s" % SECONDS, last_words))
    remarks = []
    for at in range(0, len(words) - 4, 5):
        kind, code, line, command, file = words[at : at + 5]
        how = "line %s of the prelude ended with code %s: %s" % (line, code, " ".join(command.split())[:200])
        if kind == "failed" or not _ends_in_condition(file):
            return PreludeResult(None, _with(how, last_words))
        remarks.append(_with(how, last_words))
    if not rest:
        how = "the prelude ended with code %d before its environment could be read" % ended.code
        return PreludeResult(None, _with(how, last_words))
    return PreludeResult(json.loads(rest.decode()), "", remarks)


def _with(sentence: str, last_words: str) -> str:
    if not last_words:
        return sentence
    return "%s\n%s" % (sentence, last_words)


def _ends_in_condition(path: str) -> bool:
    """Whether the last line of a sourced file may have left a condition's status: `[ -f x ] && . x`, or such a line in
    a block. Else the status was asked for, by `return`. A file that cannot be read is given the benefit of the doubt.
    """
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            text = file.read(4096).decode("utf-8", "replace")
    except (OSError, ValueError):
        return True
    lines = [line.strip() for line in text.splitlines()]
    code = [line for line in lines if line and not line.startswith("#")]
    if not code:
        return True
    return "&&" in code[-1] or code[-1].split("#")[0].rstrip(" ;").endswith(("fi", "done", "esac", "}"))
