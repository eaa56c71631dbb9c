"""One srun step for all nodes: its tasks dial back, and their connections are the channels (IO).

srun's standard input carries to every task what a node gets over ssh, with the places to dial and the secret in it;
its output goes into the run directory's srun.log, from which it is read why a node does not come.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from allranks.agent.files import open_left
from allranks.cluster import Cluster, Node
from allranks.diagnose.slurm_jobs import NO_PYTHON, Advice, error_lines, nodes_at_fault, step_ended, task_failed
from allranks.engines.dialled import ANY, DialledTransport, Listener, Refuse, Seat, own_addresses
from allranks.findings import Finding, Where
from allranks.gang.agent_archive import NO_PYTHON as NO_PYTHON_LINE
from allranks.gang.agent_archive import boot_script, payload
from allranks.gang.transport import Client, NodeHungUp, die_with_the_controller
from allranks.plan.slurm_commands import pyxis_options, step_command, step_environment
from allranks.protocol.controls import HelloControl
from allranks.protocol.header import AgentHeader, DialHeader, Header
from allranks.settings import RunSpec
from allranks.text import one_line

from . import jobs

LOOK = 0.5  # seconds between two looks at what srun says of a node that has not come
END_PATIENCE = 10.0  # seconds for the tasks to end once they were asked to
LOG_LIMIT = 1 << 20
LAUNCHER = "$SLURM_LAUNCH_NODE_IPADDR"  # where srun is, as a node sees it: Slurm sets it in every task


class Step:
    """The srun process. `say` shows what a stranger's connection was refused for; `advice` words the fixes.

    `on_end` is called, in a thread, when srun ends before `finish`.
    """

    def __init__(self, spec: RunSpec, cluster: Cluster, job: str, say: Callable[[str], None], advice: Advice) -> None:
        self._spec = spec
        self._job = job
        self._say = say
        self.advice = advice
        self._secret = secrets.token_bytes(32)
        nodes = sorted(cluster.everyone, key=lambda n: n.index)
        self.ranks = {node.name: task for task, node in enumerate(nodes)}  # as Slurm numbers the nodes of the step
        self._named = {node.host: node.name for node in nodes}  # by Slurm's name of it
        self.listener = Listener(len(nodes), self._secret, _admit, say, first=0)
        self.srun: subprocess.Popen[bytes] | None = None
        self._port = 0  # of the listener, once it listens
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._from = 0  # what stands before it was said to a start before ours
        self._finishing = False
        self.on_end: Callable[[], None] = lambda: None

    @property
    def ended(self) -> bool:
        """srun has started and ended."""
        return self.srun is not None and self.srun.poll() is not None

    def log_to(self, path: Path) -> None:
        """Write srun's output to a file; else it is lost with this process."""
        with contextlib.suppress(OSError):
            self._log = open(open_left(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND), "ab+")  # noqa: SIM115
            self._from = os.fstat(self._log.fileno()).st_size

    def argv(self) -> list[str]:
        """Return the command that starts the step."""
        script = boot_script(self._spec.launch.agent_python, self._spec.launch.python).decode()
        container: list[str] = []
        if self._spec.launch.container_image is not None and jobs.has_pyxis():
            container = pyxis_options(self._spec, os.getcwd())
        return step_command(self._job, list(self._named), jobs.version(), script, container)

    def start(self, header: AgentHeader) -> None:
        """Call srun; raise UsageError, SlurmError, OSError. Where it failed it may be called again.

        What its tasks get lies in memory, as it has the secret in it; it holds what such agents need.
        """
        argv = self.argv()
        if not self._port:
            self._port = self.listener.start(ANY, 0)
            why = self.listener.clear_because
            if why:
                self._say(f"values of --env and all else go to the nodes without encryption: {why}")
        order = DialHeader(
            places=tuple((address, self._port) for address in (LAUNCHER, *own_addresses())),
            rank_from="SLURM_NODEID",
            secret=self._secret.hex(),
            patience=max(60.0, 4 * self._spec.limits.connect_timeout),
            lease=self._spec.limits.lease,
            engine=True,
            checks=header.checks,
            tests=header.tests,
            audit=header.audit,
        )
        order_fd = os.memfd_create("allranks-step")
        with os.fdopen(order_fd, "wb", closefd=False) as file:
            file.write(payload(order))
        os.lseek(order_fd, 0, os.SEEK_SET)
        try:
            self.srun = subprocess.Popen(
                argv,
                stdin=order_fd,
                stdout=self._log,
                stderr=self._log,
                env=step_environment(os.environ),
                start_new_session=True,
                preexec_fn=die_with_the_controller,
            )
        finally:
            os.close(order_fd)
        threading.Thread(target=self._await_end, args=(self.srun,), name="srun", daemon=True).start()

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if not self._finishing:
            self.on_end()

    def output(self) -> str:
        """Return what srun and the tasks have printed."""
        return os.pread(self._log.fileno(), LOG_LIMIT, self._from).decode("utf-8", "replace")

    def at_fault(self) -> dict[str, str]:
        """Return nodes that srun complains of, with its words, and nodes without a usable Python."""
        text = self.output()
        blamed = nodes_at_fault(text, self._named)
        faults = {self._named[host]: why for host, why in blamed.items()}
        for line in text.splitlines():
            task, marker, tried = line.partition(": " + NO_PYTHON_LINE.decode())
            if marker and task.strip().isdecimal() and int(task) < len(self.ranks):
                faults[list(self.ranks)[int(task)]] = f"{NO_PYTHON} (tried {tried})"
        return faults

    def end_finding(self) -> Finding | None:
        """Say why srun ended before `finish`; None where it did not."""
        if self._finishing or self.srun is None or self.srun.poll() is None:
            return None
        started = [name for name, task in self.ranks.items() if self.listener.seats[task].taken]
        return step_ended(self.output(), self.at_fault(), started, self.srun.returncode, self.advice)

    def finish(self, message: str) -> None:
        """Tell the tasks the end and wait for srun, which is ended where it does not go."""
        if self.srun is None:
            return
        self._finishing = True
        self.listener.finish(0, message)
        try:
            self.srun.wait(END_PATIENCE if all(seat.taken for seat in self.listener.seats.values()) else 0.5)
        except subprocess.TimeoutExpired:
            self.srun.send_signal(signal.SIGTERM)  # srun ends its step
            try:
                self.srun.wait(END_PATIENCE)
            except subprocess.TimeoutExpired:
                self.srun.kill()
                self.srun.wait()


class StepTransport(DialledTransport):
    """Channels over the connections of tasks; a step starts with the first that is wanted.

    There is one step, and one more for each role that shares the nodes of another.
    """

    def __init__(self, steps: Sequence[Step], spec: RunSpec) -> None:
        dials = {name: partial(step.listener.connect, task) for step in steps for name, task in step.ranks.items()}
        super().__init__(dials, spec.launch)
        self._steps = {name: step for step in steps for name in step.ranks}

    def described(self, node: Node) -> list[str]:
        """Return the command that starts all agents, its script left out."""
        return [*self._steps[node.name].argv()[:-1], "<boot script>"]

    async def connect(self, node: Node, header: Header, seconds: float) -> Client | None:
        """Return the node's connection; None as soon as srun says that it will not come."""
        assert isinstance(header, AgentHeader), "the nodes of a step are not swept"
        step = self._steps[node.name]
        if step.srun is None:
            step.start(header)
        deadline = time.monotonic() + seconds
        while True:
            left = min(LOOK, deadline - time.monotonic())
            client = None
            try:
                client = await super().connect(node, header._replace(engine=True), max(0.05, left))
            except NodeHungUp:
                if node.name not in step.at_fault():  # else srun has said why, and ends the step
                    raise
            if client is not None or step.ended or time.monotonic() >= deadline:
                return client
            if node.name in step.at_fault():
                return None

    def failure(self, node: Node, stdout: bytes, stderr: str, code: int | None) -> Finding:
        """Say that a node's connection has ended, and srun blames no task of its step."""
        why = f": {one_line(stderr, 300)}" if stderr else ""
        text = f"{node.name}: the connection of its task in Slurm's step has ended{why}"
        remedy = f"see srun.log in the run directory, and on {node.name}: `sudo dmesg | tail`"
        return Finding("agent-killed", "fail", text, remedy, Where(node=node.name))

    def silence(self, node: Node, seconds: float, stderr: str = "") -> Finding:
        """Say why a node did not come: in srun's own words, where it has any."""
        step = self._steps[node.name]
        blamed = step.at_fault()
        place = Where(node=node.name)
        lines = error_lines(step.output())
        if node.name in blamed:
            return task_failed(node.name, blamed[node.name], False, lines[-3:], step.advice)
        if step.ended and blamed:
            text = f"{node.name} did not start: the step ended because of {', '.join(sorted(blamed))}"
            return Finding("slurm-config", "skipped", text, "", place)
        if step.ended:
            last_line = lines[-1] if lines else "it said nothing"
            text = f"{node.name} did not answer before srun ended: {last_line[:300]}"
            return Finding("slurm-config", "fail", text, "see srun.log in the run directory", place, lines[-3:])
        text = (
            f"{node.name}: its task in Slurm's step did not dial back within {seconds:g} s. It hangs in a prolog, or a "
            f"firewall drops its way to {socket.gethostname()}"
        )
        by_hand = f"try: srun --overlap --nodelist={node.name} --nodes=1 hostname"
        remedy = f"{by_hand}\na slow start needs a longer --connect-timeout"
        return Finding("master-unreachable", "fail", text, remedy, place)


def _admit(seats: dict[int, Seat], hello: HelloControl, address: str) -> int:
    """Admit everyone who knows the step's secret; the same task again, never another in its place."""
    seat = seats.get(hello.rank)
    if seat is None:
        raise Refuse(f"{address} came as node {hello.rank} of a step of {len(seats)}")
    if seat.taken and seat.hello.instance != hello.instance:
        raise Refuse(f"{address} came as node {hello.rank}, which is there already")
    return hello.rank
