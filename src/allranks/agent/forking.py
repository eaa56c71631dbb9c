"""When a node has a template, and which ranks come from it.

Before the ranks of an attempt start, a template may import what a former run of the same program has imported
(agent/import_records.py). While an attempt runs, the ranks are asked what they have imported until nothing is added:
that is kept for a later run, and imported for the next attempt. A rank is forked from the template (agent/template.py)
only where everything else is the same; whatever is not, or fails, is said, and the rank is started.
"""

from __future__ import annotations

import os
import selectors
import time
from functools import partial
from typing import TYPE_CHECKING, Callable, Dict, Mapping, Optional, Set, Tuple

from allranks.protocol.messages import TemplateMessage
from allranks.protocol.node_names import OWN_NAMES
from allranks.protocol.orders import OF_A_FORMER_RUN, PreloadOrder, RankOrder, StartOrder
from allranks.protocol.processes import ImportRecord

from .forked_tasks import Work
from .gpufacts import VISIBLE
from .link import log
from .processes import Process, lives
from .rank_start import RankStartError, TemplateLost, environment_of
from .this_node import ThisNode

if TYPE_CHECKING:
    from .template import TemplateProcess

ASK_SECONDS = 1.0  # between two questions to the ranks
MOST_QUESTIONS = 150  # a program that imports something new for so long has no template
QUESTION_SECONDS = 20.0  # for all ranks of a node to answer
TASK_SECONDS = 30.0  # to read or write a record, and the files that it speaks of
# Ranks wait for the imports of a template that has begun: they would take longer. At most that long, in seconds, and a
# multiple of what the start took that is on record.
LEAST_WAIT = 30.0
WAIT_FACTOR = 3.0
TORCH_SECONDS = 200.0  # in the place of a record: torch on a shared file system
DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, AMD, WSL
NO_DEVICES = ("", "-1", "NoDevFiles")
SEEN = "the ranks see GPUs"  # speaks against a template


class Forking:
    """The template of a node: whether there is one, whether ranks wait for it, which come from it.

    `running` gives the ranks' processes."""

    def __init__(self, node: ThisNode, running: Callable[[], Dict[int, Process]]) -> None:
        self._node = node
        self._running = running
        self._template: Optional[TemplateProcess] = None
        self._order: Optional[StartOrder] = None
        self._base: Dict[str, str] = {}
        self._attempt = 0
        self._tried = False  # the imports of a former run
        self._looking = False  # for them
        self._known = False  # what the program imports need not be asked
        self._waiting: Optional[Callable[[], None]] = None
        self._began = 0.0
        self._began_t = 0.0  # the same, in unix seconds
        self._took = 0.0  # from the start of the ranks until all had a process group
        self._wanted = False
        self._uninitialised: Set[int] = set()
        self._asking = False
        self._questions = 0
        self._next = 0.0
        self._record: Optional[ImportRecord] = None
        self._forked = 0

    @property
    def process(self) -> Optional[Process]:
        """The template, which is none of an attempt's processes."""
        if self._template is None:
            return None
        return self._template.process

    @property
    def imports(self) -> ImportRecord:
        """What the template has imported, for another node: the user's files have other stamps there."""
        if self._template is None:
            return ImportRecord()
        return self._template.record._replace(own={})

    # -- before the ranks start --------------------------------------------------------------------------

    def prepare(self, order: PreloadOrder, base: Dict[str, str]) -> None:
        """Begin to import for the ranks of an attempt, as far as it is known what."""
        self._attempt = order.attempt
        self._base = base
        if self._template is None and not self._looking:
            self._prepare(order.rank, order.preload, order.imports)

    def _prepare(self, rank: RankOrder, preload: str, imports: Optional[ImportRecord]) -> None:
        self._tried = True
        environment = environment_of(rank, self._base)
        if preload != "torch" and sees_devices(environment):
            self._off(SEEN)
            return
        if imports is not None:
            self._start(rank, environment, imports)
            return

        def find() -> ImportRecord:
            from .import_records import find_record  # late: many runs ask for none

            return find_record(rank, environment)

        self._looking = True
        done = partial(self._found, rank, preload, environment)
        self._node.tasks.run(Work("the look for imports", find, ImportRecord, TASK_SECONDS), done)

    def _found(
        self, rank: RankOrder, preload: str, environment: Dict[str, str], found: Optional[ImportRecord], error: str
    ) -> None:
        self._looking = False
        if found is None:
            self._off(error)
        elif found.against:
            self._known = True  # it is the program's, and stays
            self._off(found.against)
        elif found.modules:
            self._known = True
            self._start(rank, environment, found)
        elif preload == "torch":
            self._start(rank, environment, ImportRecord({"torch": ""}, seconds=TORCH_SECONDS))
        if self._template is None:
            self._wanted = self._asks_for_imports()
            self._go()

    def begin(self, order: StartOrder, base: Dict[str, str], go: Callable[[], None]) -> None:
        """Take the order of an attempt, and call `go` when its ranks are to start."""
        self._order = order
        self._base = base
        self._attempt = order.attempt
        self._forked = 0
        self._questions = 0
        self._record = None
        self._asking = False
        self._uninitialised = {rank.rank for rank in order.ranks}
        if order.preload in OF_A_FORMER_RUN and self._template is None and not self._tried and not self._looking:
            self._prepare(order.ranks[0], order.preload, None)
        self._wanted = self._asks_for_imports()
        self._began = time.monotonic()
        self._waiting = go
        if not self._looking and (self._template is None or self._template.ready):
            self._go()

    def _asks_for_imports(self) -> bool:
        """Tell whether the ranks of this attempt are to be asked: an answer has a use, and is not known yet."""
        order = self._order
        if order is None or order.attempt != self._attempt or self._template is not None or self._looking:
            return False
        return order.template or (order.preload in OF_A_FORMER_RUN and not self._known)

    def _go(self) -> None:
        go = self._waiting
        self._waiting = None
        if go is not None:
            self._began = time.monotonic()
            self._began_t = time.time()
            go()

    def cancel(self) -> None:
        """Have no rank wait any more: the attempt is to end."""
        self._waiting = None

    def begun(self) -> None:
        """All ranks run: say how many of them the template has given."""
        if self._forked:
            self._node.tell(TemplateMessage("used", self._attempt, ranks=self._forked))
        if self._order is not None and not self._order.template:
            self._end()  # no attempt follows

    # -- while they run ----------------------------------------------------------------------------------

    def initialised(self, rank: int) -> None:
        """Note that a rank has a process group: it can be asked."""
        if rank in self._uninitialised:
            self._uninitialised.remove(rank)
            self._next = time.monotonic() + ASK_SECONDS
            self._took = time.monotonic() - self._began

    def tick(self, now: float) -> None:
        """Ask the ranks, where it is time to; start those that have waited long enough."""
        if self._waiting is not None and now >= self._began + self._patience:
            self._off("its imports were not done %.0f s after the attempt began" % (now - self._began))
        if self._wanted and not self._uninitialised and not self._asking and now >= self._next:
            self._ask()

    @property
    def _patience(self) -> float:
        """How long ranks wait for the template, in seconds."""
        if self._template is None:
            return LEAST_WAIT
        return LEAST_WAIT + WAIT_FACTOR * self._template.record.seconds

    def _ask(self) -> None:
        processes = self._running()

        def ask() -> ImportRecord:
            from .asking import ask_imports  # late: many runs ask for none

            return ask_imports(processes, self._node.directory, self._began_t)

        self._asking = True
        done = partial(self._answered, self._attempt)
        self._node.tasks.run(Work("the question for imports", ask, ImportRecord, QUESTION_SECONDS), done)

    def _answered(self, attempt: int, record: Optional[ImportRecord], error: str) -> None:
        if attempt != self._attempt or not self._wanted:
            return
        self._asking = False
        self._next = time.monotonic() + ASK_SECONDS
        self._questions += 1
        if record is not None and record == self._record:
            self._take(record._replace(seconds=round(self._took, 3)))
        elif self._questions >= MOST_QUESTIONS:
            self._off(error or "the ranks import something new all the time")
        self._record = record

    def _take(self, record: ImportRecord) -> None:
        """Keep what the ranks have imported for a later run, and import it for the next attempt."""
        self._wanted = False
        order = self._order
        assert order is not None
        first = order.ranks[0]
        if order.preload in OF_A_FORMER_RUN and not self._known:
            self._known = True
            self._keep(first, record, "")
        if not order.template:
            return
        environment = environment_of(first, self._base)
        if order.preload != "torch" and sees_devices(environment):
            self._off(SEEN)
            return
        for rank in order.ranks[1:]:
            name = difference(environment, environment_of(rank, self._base))
            if name:
                self._off("the ranks of this node differ in %s" % name)
                return
        self._start(first, environment, record)

    def _keep(self, rank: RankOrder, imports: ImportRecord, against: str) -> None:
        environment = environment_of(rank, self._base)

        def keep() -> str:
            from .import_records import keep_record  # late: many runs ask for none

            return keep_record(rank, environment, imports, against)

        def done(place: Optional[str], error: str) -> None:
            if error:
                log("what the ranks import was not kept for the next run: %s" % error)

        self._node.tasks.run(Work("the record of imports", keep, str, TASK_SECONDS), done)

    def _start(self, rank: RankOrder, environment: Dict[str, str], record: ImportRecord) -> None:
        from .template import TemplateProcess  # late: many runs have none

        common = {name: value for name, value in environment.items() if name not in OWN_NAMES}
        try:
            self._template = TemplateProcess(rank, common, record)
        except (RankStartError, OSError) as error:
            self._off("it could not be started: %s" % error)
            return
        self._node.selector.register(self._template.channel, selectors.EVENT_READ, self.on_channel)

    def on_channel(self) -> None:
        """Read what the template says, or see that it has ended."""
        template = self._template
        if template is None:
            return
        try:
            answer = template.take_answer()
        except TemplateLost as error:
            self._off(str(error))
            return
        if answer is None:
            return
        if answer.state == "off":
            if template.record.own and (self._order is None or self._order.preload in OF_A_FORMER_RUN):
                self._keep(template.order, template.record, answer.why)
            self._off(answer.why)
        else:
            self._node.tell(answer._replace(attempt=self._attempt))
            self._go()

    def fork(self, order: RankOrder, environment: Dict[str, str]) -> Optional[Tuple[Process, int]]:
        """Give a rank of the template; None where it is to be started."""
        template = self._template
        if template is None:
            return None
        why = self._against(template, order, environment)
        if why:
            self._off(why)
            return None
        try:
            begun = template.fork(environment)
        except (TemplateLost, OSError) as error:
            self._off(str(error))
            return None
        self._forked += 1
        return begun

    def _against(self, template: TemplateProcess, order: RankOrder, environment: Dict[str, str]) -> str:
        """Say why a rank cannot come from the template; empty where it can."""
        if not lives(template.process.pid, template.process.start):
            return template.last_words()
        if not template.ready:
            return "its imports were not done when the attempt began"
        if (order.argv, order.workdir) != (template.order.argv, template.order.workdir):
            return "the command of this attempt is another"
        name = difference(template.common, environment)
        if name:
            return "this attempt differs in %s" % name
        return ""

    def _off(self, why: str) -> None:
        self._wanted = False
        self._end()
        self._node.tell(TemplateMessage("off", self._attempt, why=why))
        self._go()

    def _end(self) -> None:
        if self._template is not None:
            self._node.selector.unregister(self._template.channel)
            self._template.close()
            self._template = None


def difference(common: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Name the variable in which a rank differs from the template, but for what is its own; empty where none does."""
    for name in sorted({*common, *environment}):
        if name not in OWN_NAMES and common.get(name) != environment.get(name):
            return name
    return ""


def sees_devices(environment: Mapping[str, str]) -> bool:
    """Tell whether the node has GPUs that no variable hides from the ranks."""
    return any(map(os.path.exists, DEVICES)) and not any(environment.get(name) in NO_DEVICES for name in VISIBLE)
