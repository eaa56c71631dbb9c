"""Run a command through a template, as an agent would: PYTHON through_template.py MODULES COMMAND….

MODULES are imported in the template: NAME=FILE with commas between, or @FILE that has them. Its own output and exit
status are the rank's.
RANKS ranks are forked, one after the other; those before the last must end with 0."""

import os
import signal
import sys
import time

from allranks.agent.processes import PR_SET_CHILD_SUBREAPER, Process, prctl
from allranks.agent.rank_start import TemplateLost
from allranks.agent.template import TemplateProcess
from allranks.protocol.node_names import OWN_NAMES, TEMPLATE
from allranks.protocol.orders import RankOrder
from allranks.protocol.processes import ImportRecord


def main() -> None:
    """Start a template, have it fork one rank, and end as that does."""
    modules, *command = sys.argv[1:]
    if modules.startswith("@"):
        with open(modules[1:]) as file:
            modules = file.read()
    status = 0
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    environment = {name: value for name, value in os.environ.items() if name != TEMPLATE}
    common = {name: value for name, value in environment.items() if name not in OWN_NAMES}
    order = RankOrder(0, 0, tuple(command), {}, os.getcwd())
    files = dict(item.partition("=")[::2] for item in modules.split(",") if item)
    template = TemplateProcess(order, common, ImportRecord(files, {}))
    while True:
        time.sleep(0.002)
        try:
            answer = template.take_answer()
        except TemplateLost as error:
            sys.exit(f"off: {error}")
        if answer is not None:
            break
    if answer.state != "ready":
        sys.exit("off: " + answer.why)
    for rank in range(int(os.environ.get("RANKS", "1"))):
        if rank and status:
            sys.exit("a rank failed")
        status = follow(*template.fork(environment))
    template.close()
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
        time.sleep(60)
    os._exit(os.WEXITSTATUS(status))


def follow(process: Process, output: int) -> int:
    """Pass on what a rank prints; return how it ended."""
    os.set_blocking(output, True)
    while True:
        data = os.read(output, 1 << 16)
        if not data:
            break
        os.write(1, data)
    os.close(output)
    return os.waitpid(process.pid, 0)[1]


main()
