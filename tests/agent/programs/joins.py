"""Starts `allranks join` again and again without importing it again: a process forked for each line of standard input.

A line is {"argv", "cwd", "env", "out"}; the answer is the process's number. Its exit code goes to `out`.code.
"""

import json
import os
import sys
import threading
import traceback

import allranks.cli.join
import allranks.gang.agent_archive
from allranks.cli.main import run_verb
from allranks.gang.plugins import all_checks


def become(order: dict) -> None:
    """In the child: never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["env"])
        null = os.open(os.devnull, os.O_RDONLY)
        out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for target, source in ((0, null), (1, out), (2, out)):
            os.dup2(source, target)
        code = run_verb("join", order["argv"])
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def reap(pid: int, out: str) -> None:
    """Writes down how a child ended."""
    status = os.waitpid(pid, 0)[1]
    with open(out + ".part", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(status)))
    os.rename(out + ".part", out + ".code")


allranks.gang.agent_archive.node_zip(tuple(all_checks()))
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        become(order)
    threading.Thread(target=reap, args=(pid, order["out"]), daemon=True).start()
    print(pid, flush=True)
