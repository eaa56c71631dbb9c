"""Rounds whose nodes are not reached over ssh: they join, or Slurm gives them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.hosts.bed import Bed, Host, Process
from tests.hosts.waiting import wait_until
from tests.slurm.bed import SlurmBed

from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument
from bench.census import Alive, alive_in, is_boot, on_hosts, others
from bench.chaos.faults import NODE_WAIT
from bench.chaos.plan import PAUSE, STEPS, Round
from bench.chaos.playing import KILL, PROGRAM, Play, is_agent
from bench.launch import ALLRANKS, BOUND, PROGRAMS

PORT_STRANGERS = PROGRAMS / "chaos_port_strangers.py"
JOIN_PORT = 29400
SECRET = "0123456789abcdef0123456789abcdef"


class JoinPlay(Play):
    """Every host runs `allranks join`. The round ends with that of node 0."""

    def __init__(self, bed: Bed, place: Path, round_: Round) -> None:
        super().__init__(bed, place, round_)
        self._others: dict[str, subprocess.Popen[str]] = {}  # by host name
        self._words: list[str] = []

    def start(self) -> None:
        """Start the others first, and node 0."""
        options = self.options()
        del options["--connect-timeout"]
        options.update({"--nnodes": str(self.round.hosts), "--master-addr": self.hosts[0].name})
        options.update({"--runs-dir": str(self.launch.runs), "--node-wait": f"{NODE_WAIT:g}s"})
        self._words = [word for option in options.items() for word in option]
        for rank in reversed(range(1, self.round.hosts)):
            self._join(rank)
        self.launch.process = self._join(0)

    def _join(self, rank: int) -> subprocess.Popen[str]:
        """Start a node."""
        host = self.hosts[rank]
        argv = [*ALLRANKS, "join", *self._words, "--node-rank", str(rank), "--json", "--"]
        output = "stdout" if rank == 0 else f"stdout-{host.name}"
        line = f'exec "$@" >>"{self.place}/{output}" 2>>"{self.place}/stderr-{host.name}" </dev/null'
        env = {"ALLRANKS_JOIN_SECRET": SECRET, "XDG_STATE_HOME": self.launch.env["XDG_STATE_HOME"]}
        words = ["/bin/bash", "-c", line, "-", *argv, str(PROGRAM), str(STEPS), str(PAUSE)]
        process = host.popen(words, env=env, cwd=str(self.place))
        if rank > 0:
            self._others[host.name] = process
        return process

    def kill_and_join_again(self) -> None:
        """A scheduler starts the command of a node again."""
        os.kill(self.joiner(self.host), KILL)
        self._others[self.host.name].wait(BOUND)
        time.sleep(self.round.lasting)
        self._join(self.round.node)

    def strike_now(self) -> None:
        """Carry out the fault."""
        JOIN_STRIKES[self.round.fault](self)

    def joiner(self, host: Host) -> int:
        """The pid of a host's `allranks join`."""
        (found,) = [p.pid for p in host.pids() if "-m allranks join" in p.command and "bash" not in p.cmdline[0]]
        return found

    def wait(self) -> float:
        """The others end too."""
        seconds = super().wait()
        if self.code is None:
            with suppress(ValueError, ProcessLookupError):
                os.kill(self.joiner(self.hosts[0]), KILL)
        for name, process in self._others.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(1.0, self.lease * 2))
                continue
            if self.bed.host(name).is_on:
                self.complaints.append(f"the join of {name} was not over")
        return seconds

    def knock(self) -> None:
        """Others come to the port, from the address of a node too."""
        self.host.run(
            [sys.executable, str(PORT_STRANGERS), self.hosts[0].name, str(JOIN_PORT), str(self.round.lasting)]
        )

    def kill_controller(self) -> None:
        """Nobody decides any more: every node ends its ranks, and `stop` writes what is known."""
        os.kill(self.joiner(self.hosts[0]), KILL)
        self.launch.process.wait(BOUND)
        codes = {name: process.wait(BOUND) for name, process in self._others.items()}
        self.complaints += [f"the join of {name} ended with {code}" for name, code in codes.items() if code != 4]
        self._begin("stop")


class ElsewherePlay(Play):
    """The controller is on the last host, a hot spare. What becomes of the run is read from its directory."""

    def __init__(self, bed: Bed, place: Path, round_: Round) -> None:
        super().__init__(bed, place, round_)
        bed.connect_hosts()

    def options(self) -> dict[str, str]:
        """Say where the controller is."""
        return {**super().options(), "--controller": self.hosts[-1].name, "--runs-dir": str(self.launch.runs)}

    def result(self) -> ResultDocument | None:
        """What the run has come to, whatever the view of it has printed since."""
        return RunDirectory(self.launch.run_dir).read_result()

    def strike_now(self) -> None:
        """Carry out the fault."""
        AWAY_STRIKES[self.round.fault](self)

    def until_it_is_over(self) -> None:
        """Nobody shows the run: its result is its end, and its code that of the round."""
        result = self.launch.run_dir / "result.json"
        line = f"until [ -f {result} ]; do sleep 0.1; done; exec {sys.executable} -c 'import json, sys; "
        line += f'sys.exit(json.load(open("{result}"))["exit"])\''
        self.launch.process.wait(BOUND)
        self.begin(["/bin/sh", "-c", line])

    def kill_launcher(self) -> None:
        """SIGKILL to what the user has started."""
        self.launch.process.kill()
        self.until_it_is_over()

    def kill_client(self) -> None:
        """SIGKILL to its ssh."""
        pid = self.launch.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(children[-1]), KILL)
        self.until_it_is_over()

    def cut(self) -> None:
        """The launching machine has left the network. Its ssh notices that by itself."""
        self.hosts[-1].drop_from(self.bed.head_address)
        self.until_it_is_over()

    def close_terminal(self) -> None:
        """As a window that is closed."""
        self.hang_up()
        self.until_it_is_over()

    def take_over_too_late(self) -> None:
        """Its host dies, every node ends its ranks by its lease, and what is known is written here."""
        self.hosts[-1].power_off()
        self.launch.process.wait(BOUND)
        wait_until(lambda: not self._of_the_run(), BOUND, "ranks and agents ended by their lease")
        self._begin("attach", "--take-over", str(self.launch.run_dir), "--json")

    def take_over(self) -> None:
        """Its host dies, and this machine sees the run directory."""
        self.hosts[-1].power_off()
        self.launch.kill()  # its terminal would show for a while that nothing comes
        time.sleep(self.round.lasting)
        self._begin("attach", "--take-over", str(self.launch.run_dir), "--json")


class SlurmPlay(Play):
    """`salloc allranks run` on a real Slurm."""

    def __init__(self, slurm: SlurmBed, place: Path, round_: Round) -> None:
        super().__init__(slurm.hosts, place, round_)
        self._slurm = slurm
        self.launch.env = {**self.launch.env, **slurm.env()}
        self.launch.env["ALLRANKS_RUNS_DIR"] = str(self.launch.runs)
        self.launch.env.pop("VIRTUAL_ENV", None)

    def start(self) -> None:
        """Start the command in an allocation of its own."""
        words = [word for option in self.options().items() for word in option]
        argv = ["salloc", "-Q", f"-N{self.round.hosts}", *ALLRANKS, "run", *words, "--json"]
        self.begin([*argv, "--", str(PROGRAM), str(STEPS), str(PAUSE)])

    def strike_now(self) -> None:
        """Carry out the fault."""
        SLURM_STRIKES[self.round.fault](self)

    @property
    def _job(self) -> str:
        document = json.loads((self.launch.run_dir / "run.json").read_text())
        return str(document["slurm"]["job"])

    def kill_step(self) -> None:
        """SIGKILL to the process by which Slurm holds the step on a node."""
        os.kill(wait_until(self._task, BOUND, "a task on the node").ppid, KILL)

    def kill_task(self) -> None:
        """SIGKILL to what dials from a node."""
        os.kill(wait_until(self._task, BOUND, "a task on the node").pid, KILL)

    def _task(self) -> Process | None:
        """What slurmstepd has started on the node that is struck."""
        for process in self.host.pids():
            parent = Path(f"/proc/{process.ppid}/comm")
            with suppress(OSError):
                if is_boot(process.pid) and parent.read_text().startswith("slurmstepd"):
                    return process
        return None

    def kill_agent(self) -> None:
        """SIGKILL to an agent. The task, whose child is the relay, has another command line."""
        ours = [process for process in self.host.pids() if "allranks.agent import boot" in process.command]
        pids = {process.pid for process in ours}
        (agent,) = [process.pid for process in ours if process.ppid in pids]
        os.kill(agent, KILL)

    def cancel(self) -> None:
        """Somebody cancels the job."""
        self._slurm.call("scancel", self._job)

    def drain(self) -> None:
        """An operator drains a node: its job goes on."""
        self._slurm.scontrol("update", f"nodename={self.host.name}", "state=drain", "reason=chaos")

    def take_away(self) -> None:
        """An operator takes a node away, and Slurm ends what runs there."""
        self._slurm.scontrol("update", f"nodename={self.host.name}", "state=down", "reason=chaos")

    def _of_the_run(self) -> list[Alive]:
        return [*on_hosts(self.launch.work), *self._not_slurms()]

    def _anything(self) -> list[Alive]:
        here = [alive for alive in alive_in(self.place) if alive.on_machine]
        return [*on_hosts(self.launch.work), *self._not_slurms(), *here]

    def _not_slurms(self) -> list[Alive]:
        return [alive for alive in others(self.bed, self.launch.work) if not alive.command.startswith("slurmd -D")]


JOIN_STRIKES: dict[str, Callable[[JoinPlay], None]] = {
    "join-none": lambda play: None,
    "join-kill-rank": lambda play: play.strike_rank(KILL),
    "join-kill-agent": lambda play: play.strike_boot(is_agent, KILL),
    "join-kill": lambda play: os.kill(play.joiner(play.host), KILL),
    "join-again": JoinPlay.kill_and_join_again,
    "join-flap": lambda play: play.for_a_while(play.host.link_down, play.host.link_up),
    "join-off": lambda play: play.host.power_off(),
    "join-strangers": JoinPlay.knock,
    "join-term": lambda play: os.kill(play.joiner(play.host), signal.SIGTERM),
    "join-kill-controller": JoinPlay.kill_controller,
}
AWAY_STRIKES: dict[str, Callable[[ElsewherePlay], None]] = {
    "away-kill": ElsewherePlay.kill_launcher,
    "away-kill-ssh": ElsewherePlay.kill_client,
    "away-hang-up": ElsewherePlay.close_terminal,
    "away-cut": ElsewherePlay.cut,
    "away-stop": Play.stop,
    "away-off": ElsewherePlay.take_over_too_late,
    "away-take-over": ElsewherePlay.take_over,
}
SLURM_STRIKES: dict[str, Callable[[SlurmPlay], None]] = {
    "slurm-none": lambda play: None,
    "slurm-kill-rank": lambda play: play.strike_rank(KILL),
    "slurm-kill-agent": SlurmPlay.kill_agent,
    "slurm-kill-step": SlurmPlay.kill_step,
    "slurm-kill-task": SlurmPlay.kill_task,
    "slurm-cancel": SlurmPlay.cancel,
    "slurm-drain": SlurmPlay.drain,
    "slurm-down": SlurmPlay.take_away,
}
