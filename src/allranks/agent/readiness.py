"""Whether ranks may start on a node: its check, the rendezvous check, and its tries to reach its peers.

What may block runs in tasks. What only some runs ask for is loaded there: an agent without a descriptor left can still
say so.
"""

from __future__ import annotations

import os
import selectors
from contextlib import suppress
from functools import partial
from typing import Callable, Dict, Optional, Type

from allranks.protocol.messages import (
    FactsMessage,
    ListeningMessage,
    Message,
    ProbedMessage,
    ReachedMessage,
    ReadyMessage,
    ServingMessage,
)
from allranks.protocol.orders import ListenOrder, ProbeOrder, ReachOrder, ReadyOrder, ServeOrder, SetupOrder

from .forked_tasks import Answer, Work
from .link import log
from .node_check import NodeCheck, check_node
from .rendezvous_check import MasterPort, Nonce, ask_server, free_ports, port_failure, probe
from .this_node import ThisNode

SPARE_SECONDS = 5.0  # for a task to end by itself after the time that it was given


class Readiness:
    """What is looked at before ranks start. `environment` is what they get below what is ordered for each."""

    def __init__(self, node: ThisNode) -> None:
        self._node = node
        self._session = dict(os.environ)
        self.environment = self._session
        self._master_port: Optional[MasterPort] = None
        self._nonce = Nonce()

    def on_setup(self, order: SetupOrder) -> None:
        """Check this node, and keep the environment after the prelude, which may run once more."""
        check = partial(_check_node, order, self._session, self._node.header.cwd)
        self._node.tasks.answer(Work("the check of this node", check, NodeCheck, order.seconds), self._facts)

    def _facts(self, check: Optional[NodeCheck], error: str) -> Message:
        if check is None:
            return FactsMessage(error=error)
        self.environment = check.environment
        return FactsMessage(check.facts)

    # -- the rendezvous check ------------------------------------------------------------------------

    def on_listen(self, order: ListenOrder) -> None:
        """Listen at the master's port, and leave the file that shows whether an output directory is shared."""
        self._forget_port()
        trouble = self._nonce.leave(order.nonce_dir, order.token)
        if trouble is not None:
            log(trouble)
        try:
            opened = MasterPort(order.port, order.token)
        except OSError as error:
            self._node.tell(ListeningMessage(error=port_failure(order.port, error)))
            return
        self._master_port = opened
        assert opened.listener is not None
        self._node.selector.register(opened.listener, selectors.EVENT_READ, opened.accept)
        self._node.tell(ListeningMessage(opened.port, more=free_ports(order.more, opened.port)))

    def on_probe(self, order: ProbeOrder) -> None:
        """Try the master's addresses."""
        self._answer("the rendezvous check", partial(probe, order), ProbedMessage, order.seconds)

    def on_ready(self, order: ReadyOrder) -> None:
        """Ask whether a server answers."""
        self._answer("the ready test", partial(ask_server, order), ReadyMessage, order.seconds)

    def _answer(self, name: str, function: Callable[[], Answer], kind: Type[Answer], seconds: float) -> None:
        self._node.tasks.answer_with(Work(name, function, kind, seconds + SPARE_SECONDS))

    def hold_port(self) -> None:
        """Listen no more, and keep the port for the master: ranks start."""
        self._stop_listening()
        if self._master_port is not None:
            self._master_port.hold()
        self._nonce.remove()

    def release_port(self) -> None:
        """Let the port go: the master has it."""
        if self._master_port is not None:
            self._master_port.release()

    def forget(self) -> None:
        """Leave nothing of the rendezvous check: the attempt is to end."""
        self._nonce.remove()
        self._forget_port()

    def _stop_listening(self) -> None:
        if self._master_port is not None and self._master_port.listener is not None:
            self._node.selector.unregister(self._master_port.listener)

    def _forget_port(self) -> None:
        self._stop_listening()
        self.release_port()
        self._master_port = None

    # -- peers ---------------------------------------------------------------------------------------

    def on_serve(self, order: ServeOrder) -> None:
        """Open two ports for the peers' tries; a task answers there for as long as the controller said."""

        def serve() -> bool:
            peers.serve(tcp, udp, order.token, order.seconds)
            return True

        def done(is_done: Optional[bool], error: str) -> None:
            if error:
                log(error)

        try:
            from . import peers  # late: `allranks check` alone tries them

            tcp, udp = peers.open_doors()
        except (OSError, ImportError) as error:  # no descriptor is left
            log("no ports could be opened for the peers: %s" % error)
            return
        if self._node.tasks.run(Work("serving", serve, bool, order.seconds + SPARE_SECONDS), done):
            self._node.tell(ServingMessage(tcp.getsockname()[1], udp.getsockname()[1]))
        tcp.close()
        udp.close()

    def on_reach(self, order: ReachOrder) -> None:
        """Try to reach the peers."""
        self._answer("reaching peers", partial(_reach, order), ReachedMessage, order.seconds)


def _check_node(order: SetupOrder, base: Dict[str, str], cwd: str) -> NodeCheck:
    """Check the node where the session stood: a prelude may name files from there."""
    with suppress(OSError):  # it has been removed, and what needs it says so
        os.chdir(cwd)
    return check_node(order, base)


def _reach(order: ReachOrder) -> ReachedMessage:
    from .peers import reach  # late: as in `on_serve`

    return reach(order)
