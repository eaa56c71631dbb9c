"""Ranks of an example that write into a directory."""

from pathlib import Path

from tests.fabric import gang
from tests.hosts.waiting import BOUND


class Ranks:
    """Ranks of an example on loopback, forked from a process that has imported torch; each has a log."""

    def __init__(self, script: Path, out: Path, *options: str, world: int = 2) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.logs = [out / f"{rank}.log" for rank in range(world)]
        self.processes, port = [], gang.free_port()
        for rank, log in enumerate(self.logs):
            log.unlink(missing_ok=True)
            words = ["--out", str(out), *options]
            environment = gang.environment(rank, world, world, port)
            self.processes.append(gang.fork(gang.be_script, environment, str(script), words, str(log)))

    def finish(self) -> str:
        """The output of rank 0; every rank must have ended well."""
        for process in self.processes:
            process.join(BOUND)
        codes = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        assert codes == [0] * len(codes), [log.read_text() for log in self.logs]
        return self.logs[0].read_text()
