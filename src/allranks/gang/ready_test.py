"""Whether a role has started: its ready test, until it passes or its time is over. Pure.

A test of a port or a URL is made by every node of the role, each with its own address for `{address}`. Without a test a
role has started once its processes run. The roles that come after it start then.
"""

from __future__ import annotations

import re

from allranks.cluster.names import bracketed
from allranks.findings import Finding, place_of
from allranks.protocol.messages import ReadyMessage
from allranks.protocol.orders import ReadyOrder
from allranks.protocol.run_facts import RoleReady, Stamped
from allranks.settings.roles import fill_roles
from allranks.text import format_duration

from .ending import Ending
from .roster import Roster
from .states import Action, Send, Tick

EVERY = 0.5  # seconds between two looks at a server
_URL = re.compile(r"(?P<scheme>https?)://(?P<host>\[[^\]]*\]|[^/:]*)(?::(?P<port>[0-9]{1,5}))?(?P<path>/.*)?")
PATIENCE = 15.0  # seconds for a node to say what came of one


class ReadyTest:
    """The ready test of a role. A plain run has none."""

    def __init__(self, roster: Roster, ending: Ending) -> None:
        self.roster = roster
        self.ending = ending
        self.was_ready = False  # in any attempt
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self.is_ready = self.roster.role.is_plain
        self._began_at: float | None = None
        self._asked_at: dict[str, float] = {}  # nodes whose answer has not come
        self._next_at: dict[str, float] = {}
        self._passed: set[str] = set()
        self.answers: dict[str, str] = {}  # the last one by node

    # -- events ------------------------------------------------------------------------------------

    def on_tick(self, stamped: Stamped[Tick], now: float) -> list[Action]:
        """Look again at what is not ready, until the time is over."""
        if self.is_ready:
            return []
        role = self.roster.role
        if self._began_at is None:
            self._began_at = now
        if not role.ready and all(rank.pid is not None for rank in self.roster.processes()):
            return self._pass("its processes run", now)
        if stamped.fact.has_line and role.ready.startswith("output:"):
            return self._pass("a rank has printed it", now)
        if now - self._began_at > role.ready_timeout:
            return self.ending.refuse([self._late()], now)
        if not role.ready or role.ready.startswith("output:"):
            return []
        return [Send(node, self._order(node)) for node in self.roster.nodes if self._is_due(node, now)]

    def on_ready(self, stamped: Stamped[ReadyMessage], now: float) -> list[Action]:
        """Take the answer of a node."""
        node = stamped.node
        if self.is_ready or self._asked_at.pop(node, None) is None:
            return []
        self._next_at[node] = now + EVERY
        self.answers[node] = stamped.fact.answer or stamped.fact.error
        if stamped.fact.ok:
            self._passed.add(node)
        if self._passed >= set(self.roster.nodes):
            return self._pass(self.answers[node], now)
        return []

    # -- before the start --------------------------------------------------------------------------

    def looks_before(self) -> list[Send]:
        """Let each node look at its own address: what answers there now is another program."""
        test = self.roster.role.ready
        if not (test.startswith("port:") or "{address}" in test):
            return []
        return [Send(node, self._order(node)) for node in self.roster.nodes]

    def taken(self, node: str, answer: str) -> Finding:
        """Say that another program answers the ready test of a role that has not started."""
        message = f"on {node} {self.test_on(node)} is answered before {self.roster.role.name} starts: {answer}"
        port = self._order(node).port
        free = f"{{{self.roster.role.name}.port.http}}"
        remedy = f"see who has it with `ss -ltnp sport = :{port}` there, or name a free one as {free}"
        return Finding("port-in-use", "fail", message, remedy, place_of([node])._replace(port=port))

    # -- decisions -----------------------------------------------------------------------------------

    def _is_due(self, node: str, now: float) -> bool:
        """Tell whether a node is to look now, and count it as asked."""
        if node in self._passed or now < self._next_at.get(node, 0.0):
            return False
        if now - self._asked_at.get(node, now - PATIENCE) < PATIENCE:
            return False
        self._asked_at[node] = now
        return True

    def _order(self, node: str) -> ReadyOrder:
        test = self.test_on(node)
        if test.startswith("port:"):
            return ReadyOrder(self._address(node), int(test.partition(":")[2]))
        url = _URL.match(test)
        assert url is not None, "the settings have judged the test"
        secure = url["scheme"] == "https"
        port = int(url["port"] or (443 if secure else 80))
        return ReadyOrder(url["host"].strip("[]"), port, url["path"] or "/", secure)

    def test_on(self, node: str) -> str:
        """Give the ready test as a node makes it."""
        test = fill_roles(self.roster.role.ready, self.roster.context.peers)
        return re.sub(r"\{address\}", bracketed(self._address(node)), test)

    def _address(self, node: str) -> str:
        return self.roster.addresses.get(node, self.roster.master_addr)

    def _pass(self, answer: str, now: float) -> list[Action]:
        self.is_ready = self.was_ready = True
        began = self._began_at if self._began_at is not None else now
        test = self.test_on(next(iter(self.roster.nodes)))
        return [self.roster.stamp(RoleReady(round(now - began, 1), test, answer))]

    def _late(self) -> Finding:
        roster = self.roster
        late = [node for node in roster.nodes if node not in self._passed]
        first = late[0]
        limit = format_duration(roster.role.ready_timeout)
        test = self.test_on(first)
        if not roster.role.ready:
            message = f"on {first} its process has not started within {limit}"
        elif test.startswith("output:"):
            message = f"no rank has printed a line with {test.partition(':')[2]} within {limit}"
        else:
            answer = self.answers.get(first, "no answer")
            message = f"on {first} {test} was not ready within {limit} (ready_timeout). It last answered: {answer}"
        remedy = f"see what it printed with `allranks logs --role {roster.role.name}`, or set a longer ready_timeout"
        return Finding("role-not-ready", "fail", message, remedy, place_of([first]), tuple(self.answers.values())[:8])
