"""Starts `allranks` from the source tree as a user would, on virtual nodes that share the GPU; reads what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "bench" / "programs"
# For the tests: each virtual node is a host of its own for NCCL, which refuses two ranks of one host on one GPU.
# $GROUP_RANK is known in the rank alone. The program of the runs does it itself, as no ranks are forked behind --wrap.
# The loopback carries what NVLink or a fabric would.
WRAP = "sh -c 'NCCL_HOSTID=virtual-$GROUP_RANK exec \"$@\"' --"
SETTINGS = ("NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_SOCKET_IFNAME=lo", "NCCL_IB_DISABLE=1")
END = 20.0  # seconds for an orderly end after a limit


def environment(source: Path = ROOT / "src") -> dict[str, str]:
    """The environment of `allranks` from a source tree."""
    return {**os.environ, "PYTHONPATH": str(source), "NO_COLOR": "1", "COLUMNS": "200"}


def visible() -> bool:
    """Tell whether a rank could use a GPU."""
    return os.path.exists("/dev/nvidiactl") and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


@dataclass
class Launched:
    """A run that is over: `said` is its output, `directory` what it left."""

    exit: int
    seconds: float
    said: str
    directory: Path | None

    @property
    def result(self) -> dict[str, Any]:
        """The run's result.json; empty where there is none."""
        path = self.directory / "result.json" if self.directory else Path("none")
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """The run's events, or those of one name."""
        path = self.directory / "events.jsonl" if self.directory else Path("none")
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [event for event in found if not name or event["event"] == name]

    def summary(self) -> dict[str, Any]:
        """What the report keeps of it."""
        result = self.result
        verdict = result.get("verdict") or {}
        kept = ("message", "cause", "confidence", "evidence", "remedy", "victims", "culprits", "where", "runners_up",
                "detected_after_s")  # fmt: skip
        return {
            "exit": self.exit,
            "seconds": round(self.seconds, 2),
            "verdict": {name: verdict.get(name) for name in kept},
            "findings": result.get("findings"),
            "timing": result.get("timing"),
            "time_ledger": result.get("time_ledger"),
            "left": sorted(str(p.relative_to(self.directory)) for p in self.directory.rglob("*") if p.is_file())[:60]
            if self.directory
            else [],
            "said": self.said[-6000:],
        }


def ask(place: Path, limit: float, *words: str, source: Path = ROOT / "src", name: str = "said") -> Launched:
    """Run `allranks` with these words in a directory; SIGTERM at the limit, SIGKILL of its group a while later."""
    began = time.monotonic()
    with (place / name).open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "allranks", *words], cwd=place, stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT, text=True, start_new_session=True, env=environment(source),
        )  # fmt: skip
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            _ended(process)
            code = 124
        said.seek(0)
        text = said.read()
    runs = sorted((place / "runs").glob("run-*")) if (place / "runs").is_dir() else []
    return Launched(code, time.monotonic() - began, text, runs[-1] if runs else None)


@contextmanager
def going_on(place: Path, limit: float, kind: str, *options: str, nodes: int = 2) -> Iterator[Callable[[], Launched]]:
    """A run that has come to its first steps; the function ends it, and gives what it left."""
    began = time.monotonic()
    words = ["run", *gang(nodes), "--runs-dir", str(place / "runs"), *options, "--", str(PROGRAMS / "gpu.py")]
    with (place / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "allranks", *words, *kind.split()], cwd=place, stdin=subprocess.DEVNULL,
            stdout=said, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=environment(),
        )  # fmt: skip

        def end() -> Launched:
            code = _ended(process)
            runs = sorted((place / "runs").glob("run-*"))
            return Launched(code, time.monotonic() - began, (place / "said").read_text(), runs[-1] if runs else None)

        try:
            while "step 5 " not in (place / "said").read_text():
                if process.poll() is not None or time.monotonic() > began + limit:
                    raise RuntimeError(f"no step 5: {end().said[-300:]}")
                time.sleep(0.2)
            yield end
        finally:
            _ended(process)


def _ended(process: subprocess.Popen[str]) -> int:
    """End a run that goes on: SIGTERM, and SIGKILL of its group a while later."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(END)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def gang(nodes: int, env: Mapping[str, str] | None = None) -> list[str]:
    """The options of virtual nodes that share the GPU, a rank each."""
    settings = [*SETTINGS, *(f"{name}={value}" for name, value in (env or {}).items())]
    if visible():
        settings.append("CUDA_VISIBLE_DEVICES=0")
    return ["--local", str(nodes), "--nproc", "1", *(word for setting in settings for word in ("--env", setting))]


def run(place: Path, limit: float, kind: str, *options: str, nodes: int = 2, env: Mapping[str, str] | None = None,
        source: Path = ROOT / "src", program: str = "gpu.py") -> Launched:  # fmt: skip
    """`allranks run` of the program of the parts, or of another one."""
    return ask(place, limit, "run", *gang(nodes, env), "--runs-dir", str(place / "runs"), *options, "--",
               str(PROGRAMS / program), *kind.split(), source=source)  # fmt: skip
