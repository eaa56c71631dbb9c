"""The parts of the GPU report, cheapest first. Without a GPU the same ranks run over Gloo, and what needs one skips."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.gpu.launching import PROGRAMS, ROOT, WRAP, Launched, ask, gang, going_on, run, visible
from bench.gpu.plan import Outcome, Part, Skipped

SMI = ("name", "driver_version", "memory.total", "clocks.sm", "clocks.max.sm", "temperature.gpu", "power.draw",
       "pcie.link.gen.current", "pcie.link.width.current", "ecc.errors.uncorrected.volatile.total", "compute_mode",
       "clocks_event_reasons.active", "persistence_mode", "mig.mode.current")  # fmt: skip
GPU_CHECKS = ("gpu_count,gpu_model,gpu_ecc,gpu_throttle,pcie_width,gpu_busy,"
              "gpu_recovery,gpu_matmul")  # fmt: skip


def needs_gpu() -> None:
    """Raises Skipped where there is none."""
    if not visible():
        raise Skipped("no GPU is visible here")


def smi() -> dict[str, str]:
    """What nvidia-smi says of the first card."""
    argv = ["nvidia-smi", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader,nounits", "-i", "0"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30)
    return dict(zip(SMI, (word.strip() for word in done.stdout.split(",")), strict=False))


def machine() -> dict[str, Any]:
    """The machine that the report is of."""
    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__,
                             "kernel": platform.release(), "cores": os.cpu_count()}  # fmt: skip
    if visible():
        found |= {"smi": smi(), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return found


def checks(place: Path, limit: float) -> Outcome:
    """The GPU checks of `allranks check` beside nvidia-smi."""
    done = ask(place, limit, "check", "--local", "1", "--json", *(("--only", GPU_CHECKS) if visible() else ()))
    document = json.loads(done.said[done.said.index("{"):])  # fmt: skip
    facts: dict[str, Any] = {"exit": done.exit, "document": document}
    if not visible():
        raise Skipped(f"no GPU is visible here; check ended with {done.exit}")
    facts["smi"] = smi()
    states = {one["id"]: one["status"] for one in document["findings"]}
    return Outcome(f"exit {done.exit}: {states}", done.exit == 0, facts)


def whole_check(place: Path, limit: float) -> Outcome:
    """All checks, as a user sees them."""
    done = ask(place, limit, "check", "--local", "2")
    return Outcome(f"exit {done.exit}", None, {"said": done.said[-8000:]})


def trains(place: Path, limit: float) -> Outcome:
    """A run that ends well."""
    done = run(place, limit, "train", nodes=4)
    return Outcome(f"exit {done.exit}, first step after {done.result.get('timing', {}).get('first_step')} s",
                   done.exit == 0, done.summary())  # fmt: skip


def fails(place: Path, limit: float, *, kind: str, causes: tuple[str, ...], options: tuple[str, ...] = (),
          gpu: bool = False, timeout: int | None = None, standin: str = "gpu.py") -> Outcome:  # fmt: skip
    """A run that fails: the verdict's cause is one of those, and its culprit is rank 1.

    Without a GPU `standin` is what runs, and groups have three times their `timeout`: that machine may be busy."""
    if gpu:
        needs_gpu()
    seconds = 0 if timeout is None else timeout * (1 if visible() else 3)
    words = f"{kind} 100000 {seconds}" if seconds else f"{kind} 100000"
    done = run(place, limit, words, *options, nodes=3, program="gpu.py" if visible() else standin)
    verdict = done.result.get("verdict") or {}
    right = verdict.get("cause") in causes and (verdict.get("where") or {}).get("rank") == 1
    facts = done.summary()
    facts["dumps"] = [str(path) for path in Path.home().glob(".cache/torch/*trace*")][:8]
    stacks = sorted(done.directory.glob("evidence/**/*")) if done.directory else []
    facts["evidence"] = {path.name: path.read_text(errors="replace")[:3000] for path in stacks if path.is_file()}
    facts["logs"] = logs_of(done)
    line = f"exit {done.exit}: {verdict.get('message') or done.said[-200:]!r} ({verdict.get('cause')})"
    return Outcome(line, right, facts)


def logs_of(done: Launched) -> dict[str, str]:
    """The end of each log of the run."""
    found = sorted(done.directory.glob("logs/**/*")) if done.directory else []
    return {str(path.name): path.read_text(errors="replace")[-2500:] for path in found if path.is_file()}


def slow(place: Path, limit: float) -> Outcome:
    """A slow rank, 100 ms a step: is it named while the run goes on?"""
    done = run(place, limit, "slow 400", "--straggler-interval", "5s", nodes=3,
               env={"TORCH_NCCL_ENABLE_TIMING": "1"})  # fmt: skip
    findings = [event for event in done.events("finding") if event["id"] in ("slow-rank", "slow-link")]
    said = findings[0]["message"] if findings else "nothing was said"
    right = bool(findings) and all(one["where"].get("rank") == 1 for one in findings)
    return Outcome(f"exit {done.exit}: {said}", right, {**done.summary(), "slow": findings})


def restart(place: Path, limit: float, *, preload: str, source: str = "") -> Outcome:
    """A killed rank, and the seconds until all ranks step again."""
    tree = ROOT / "src"
    if source:
        needs_gpu()
        tree = patched(place, source)
    done = run(place, limit, "restart 100", "--retries", "1", "--preload", preload, nodes=2, source=tree)
    ended = [event["t"] for event in done.events("attempt-end")]
    up = [event["t"] for event in done.events("all-initialised")]
    seconds = round(up[1] - ended[0], 2) if len(up) > 1 and ended else None
    first = done.result.get("timing", {}).get("initialised")
    templates = done.events("template")
    line = f"exit {done.exit}: first start {first} s, all ranks initialised {seconds} s after the failed attempt's end"
    return Outcome(line, done.exit == 0, {**done.summary(), "templates": templates, "restart_s": seconds})


def patched(place: Path, pattern: str) -> Path:
    """A copy of the source in which forked ranks are allowed where GPUs are seen."""
    tree = place / "src"
    shutil.copytree(ROOT / "src", tree, ignore=shutil.ignore_patterns("__pycache__"))
    path = tree / "allranks" / "agent" / "forking.py"
    text = path.read_text()
    if text.count(pattern) != 1:
        raise Skipped(f"forking.py no longer says {pattern!r} once")
    path.write_text(text.replace(pattern, 'return ""'))
    return tree


def collective(place: Path, limit: float, *, suite: str) -> Outcome:
    """A suite of the collective tests over NCCL."""
    backend = "nccl" if visible() else "gloo"
    done = ask(place, limit, "test", *gang(4 if suite == "pairs" else 3), "--wrap", WRAP, "--backend", backend,
               "--suite", suite, "--size", "16MB", "--json", "--runs-dir", str(place / "runs"))  # fmt: skip
    lines = [line for line in done.said.splitlines() if line.startswith('{"schema"')]
    document = json.loads(lines[-1]) if lines else {}
    return Outcome(f"exit {done.exit}, {done.seconds:.1f} s", done.exit == 0,
                   {"document": document, "said": "" if lines else done.said[-4000:]})  # fmt: skip


def overlap(place: Path, limit: float) -> Outcome:
    """What `overlap` reads from traces of a real run."""
    trained = run(place, limit / 2, "profile 40", nodes=2)
    traces = [*place.rglob("rank_*_trace.json")]
    done = ask(place, limit / 2, "overlap", *map(str, traces))
    text = re.sub(r"\s+", " ", done.said)[:300]
    return Outcome(f"run exit {trained.exit}, {len(traces)} traces, exit {done.exit}: {text}",
                   trained.exit == 0 and done.exit == 0, {"said": done.said[-4000:], **trained.summary()})  # fmt: skip


def steps_of(place: Path) -> list[tuple[float, float]]:
    """When each step of rank 0 began, and its seconds."""
    lines = (place / "steps-0").read_text().splitlines()
    return [(float(line.split()[0]), float(line.split()[1])) for line in lines if line.count(" ") == 1]


def steps_after(place: Path, t: float) -> float:
    """Wait for CALM steps that begin after a time, half a minute at most; what time it is then."""
    deadline = time.monotonic() + 30
    while sum(began > t for began, _ in steps_of(place)) < CALM and time.monotonic() < deadline:
        time.sleep(0.1)
    return time.time()


def live(place: Path, limit: float) -> Outcome:
    """`stacks` and `profile` of a run that goes on, and how long its steps take before, meanwhile and afterwards."""
    runs = ("--runs-dir", str(place / "runs"))
    with going_on(place, 0.7 * limit, "timed 100000") as end:
        looked = ask(place, limit / 4, "stacks", "--json", *runs, name="stacks")
        began = steps_after(place, time.time())
        profiled = ask(place, limit / 4, "profile", "--rank", "0,1", "--steps", "3", "--json", *runs, name="profile")
        ended = time.time()
        steps_after(place, ended)
        done = end()
    stacks, profile = (json.loads(one.said[one.said.index("{"):]) for one in (looked, profiled))  # fmt: skip
    spans = {"before": (0.0, began), "meanwhile": (began, ended), "afterwards": (ended, float("inf"))}
    steps = steps_of(place)[WARM:]
    seconds = {name: [took for at, took in steps if first <= at < last] for name, (first, last) in spans.items()}
    medians = {name: round(statistics.median(ones) * 1000, 1) for name, ones in seconds.items() if ones}
    longest = round(max(seconds["meanwhile"], default=0.0) * 1000)
    ranks = profile.get("ranks", [])
    devices = [one["device"] for one in profile.get("overlap", {}).get("ranks", [])]
    kinds = [one["name"] for one in profile.get("overlap", {}).get("collectives", [])]
    right = (
        looked.exit == 0 and profiled.exit == 0 and len(stacks["ranks"]) == 2 and "all_reduce" in kinds
        and devices == ["gpu" if visible() else "cpu"] * 2 and "afterwards" in medians and done.exit == 143
    )  # fmt: skip
    line = (
        f"stacks {looked.seconds:.1f} s; profile {profiled.seconds:.1f} s, stood still "
        f"{[one['stalled'] for one in ranks]} s; median step {medians} ms, longest meanwhile {longest} ms"
    )
    return Outcome(line, right, {"stacks": stacks, "profile": profile, "steps": seconds, **done.summary()})


def fork(place: Path, limit: float, *, first: tuple[str, ...]) -> Outcome:
    """Do children of a process that has imported torch (and done `first`) use the GPU? Plain torch, no allranks."""
    needs_gpu()
    argv = [sys.executable, str(PROGRAMS / "gpu_fork.py"), *first]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False, cwd=place)
    said = (done.stdout + done.stderr)[-1500:]
    return Outcome(f"exit {done.returncode}: {said.splitlines()[:3]}", None, {"said": said})


def counters(place: Path, limit: float) -> Outcome:
    """NVML by ctypes beside nvidia-smi."""
    needs_gpu()
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    found: dict[str, Any] = {"init": nvml.nvmlInit_v2()}
    handle = ctypes.c_void_p()
    found["handle"] = nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    number = ctypes.c_uint()
    for name, kind in (("SM", 1), ("memory", 2)):
        found[f"clock {name}"] = (nvml.nvmlDeviceGetClockInfo(handle, kind, ctypes.byref(number)), number.value)
    found["temperature"] = (nvml.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(number)), number.value)
    found["power mW"] = (nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(number)), number.value)
    reasons = ctypes.c_ulonglong()
    code = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons))
    found["throttle reasons"] = (code, reasons.value)
    found["replay"] = (nvml.nvmlDeviceGetPcieReplayCounter(handle, ctypes.byref(number)), number.value)
    for link in range(4):
        state = ctypes.c_uint()
        found[f"nvlink {link}"] = (nvml.nvmlDeviceGetNvLinkState(handle, link, ctypes.byref(state)), state.value)
    types = ctypes.c_ulonglong()
    found["events"] = (nvml.nvmlDeviceGetSupportedEventTypes(handle, ctypes.byref(types)), types.value)
    found["smi"] = smi()
    listing = subprocess.run(["ls", "-l", "/sys/class/infiniband", "/proc/driver/nvidia/gpus"], capture_output=True,
                             text=True, check=False)  # fmt: skip
    found["devices"] = listing.stdout + listing.stderr
    return Outcome(str({name: found[name] for name in ("clock SM", "throttle reasons", "events")}), None, found)


def agent_counters(place: Path, limit: float) -> Outcome:
    """What the agent's own process reads of the first GPU, beside nvidia-smi, and what that costs."""
    needs_gpu()
    code = (
        "import json, resource, sys, time; from allranks.agent.counters import DeviceReader; "
        "from allranks.agent.gpufacts import addresses; from allranks.protocol.codec import encode; "
        "reader = DeviceReader(addresses({})); first = reader.read(); began = time.process_time(); "
        "last = [reader.read() for _ in range(50)][-1]; cost = (time.process_time() - began) / 50; "
        "waited = reader._nvml.wait(0.2); "
        "print(json.dumps({'first': encode(first), 'last': encode(last), 'seconds': cost, 'events': waited}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=limit, check=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, cwd=place).stdout  # fmt: skip
    facts = json.loads(said) | {"smi": smi()}
    gpu = facts["last"]["gpus"][0]
    same = (gpu["clock_max"], gpu["pcie_width"]) == tuple(
        int(facts["smi"][name]) for name in ("clocks.max.sm", "pcie.link.width.current")
    )
    share = facts["seconds"] / 10
    line = (
        f"{facts['seconds'] * 1000:.2f} ms a sample, {share:.3%} of a core at one in 10 s, Xid events {facts['events']}"
    )
    return Outcome(line, same and share <= 0.001, facts)


def timing_cost(place: Path, limit: float) -> Outcome:
    """What TORCH_NCCL_ENABLE_TIMING costs: the same loop with and without, alternating."""
    needs_gpu()
    queued: dict[str, list[float]] = {"0": [], "1": []}
    done: dict[str, list[float]] = {"0": [], "1": []}
    for turn in ("0", "1", "1", "0", "0", "1"):
        environment = {**os.environ, "TORCH_NCCL_ENABLE_TIMING": turn, "TORCH_FR_BUFFER_SIZE": "2000"}
        argv = [sys.executable, str(PROGRAMS / "gpu_timing.py")]
        said = subprocess.run(argv, capture_output=True, text=True, timeout=limit / 6, check=True, env=environment,
                              cwd=place).stdout.split()  # fmt: skip
        queued[turn].append(float(said[-2]))
        done[turn].append(float(said[-1]))
    more = {name: statistics.median(of["1"]) - statistics.median(of["0"]) for name, of in
            (("queued", queued), ("done", done))}  # fmt: skip
    line = f"{more['queued']:+.2f} µs a collective as queued, {more['done']:+.2f} µs as done: {queued} {done}"
    return Outcome(line, None, {"queued": queued, "done": done})


WARM = 5  # steps that are left out
CALM = 20  # steps without a question
HANG = ("--hang-timeout", "20s")
STRAGGLER = ("straggler",)
PARTS = (
    Part("counters", counters, 30),
    Part("agent counters", agent_counters, 30),
    Part("checks", checks, 60),
    Part("whole check", whole_check, 60),
    Part("fork after import", partial(fork, first=()), 60),
    Part("fork after available", partial(fork, first=("available",)), 60),
    Part("trains", trains),
    Part("exception", partial(fails, kind="exit", causes=("program-exception",))),
    Part("kill", partial(fails, kind="kill", causes=("rank-killed",))),
    Part("cuda out of memory", partial(fails, kind="oom", causes=("cuda-out-of-memory",), gpu=True)),
    Part("device assertion", partial(fails, kind="assert", causes=("cuda-kernel-fault",), gpu=True)),
    Part("illegal access", partial(fails, kind="illegal", causes=("cuda-kernel-fault",), gpu=True)),
    Part("hang", partial(fails, kind="sleep", causes=STRAGGLER, options=HANG), 120),
    Part("hang, group 40 s", partial(fails, kind="sleep", causes=STRAGGLER, timeout=40), 150),
    Part(
        "watchdog first",
        partial(
            fails, kind="sleep", causes=STRAGGLER, options=("--hang-timeout", "0"), timeout=15, standin="gpu_dumps.py"
        ),
        150,
    ),
    Part("slow rank", slow, 150),
    Part("sync tests", partial(collective, suite="sync"), 120, alone=True),
    Part("bandwidth tests", partial(collective, suite="bandwidth"), 120, alone=True),
    Part("pairs tests", partial(collective, suite="pairs"), 120, alone=True),
    Part("restart, started", partial(restart, preload="never"), 90, alone=True),
    Part("restart, forked", partial(restart, preload="retries", source='return "the ranks see GPUs"'), 90, alone=True),
    Part("overlap", overlap, 90, alone=True),
    Part("profile", live, 200, alone=True),
    Part("cost of timing", timing_cost, 120, alone=True),
)
