"""audit: what `--audit-data` costs the demo a step, while it notes batches and after."""

from __future__ import annotations

import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from allranks.data import probe
from allranks.gang.agent_archive import beside_the_runner
from bench.table import Report, Sample, alternate, column

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "examples" / "train_lm.py"
BATCH, CONTEXT, WARM = 8, 96, 10
LAYERS, WIDTH = 2, 128  # the demo's defaults
BOUND = 600.0
OFF, ON = "without", "audited"


def _train(steps: int, noted: int, workers: int) -> Sample:
    """One rank of the demo under the runner; medians of its steps' seconds over the noted steps, and after them."""
    with tempfile.TemporaryDirectory(prefix="allranks-bench-") as folder:
        for name, content in beside_the_runner(False, True).items():
            (Path(folder) / name).write_bytes(content)
        out, rows = Path(folder) / "out", Path(folder) / "rows.jsonl"
        words = ["--steps", str(steps), "--batch", str(BATCH), "--context", str(CONTEXT), "--workers", str(workers),
                 "--out", str(out), "--resume", "never"]  # fmt: skip
        env = {k: v for k, v in os.environ.items() if k not in ("ALLRANKS_AUDIT_FILE", "ALLRANKS_AUDIT_BATCHES")}
        if noted:
            env.update(ALLRANKS_AUDIT_FILE=str(rows), ALLRANKS_AUDIT_BATCHES=str(noted))
        argv = [sys.executable, f"{folder}/runner.py", str(SCRIPT), *words]
        done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=BOUND)
        if done.returncode:
            raise RuntimeError(f"exit {done.returncode}: {done.stderr[-400:]}")
        found = [json.loads(line) for line in (out / "rank_00_metrics.jsonl").read_text().splitlines()]
        seconds = [BATCH * CONTEXT / row["tokens_per_s"] for row in found]
        written = rows.stat().st_size if rows.exists() else 0
        if bool(written) != bool(noted):
            raise RuntimeError(f"{written} bytes of notes where {noted} batches were to be noted")
        during, after = seconds[WARM : steps // 2], seconds[steps // 2 :]
        return {"during": _middle(during), "after": _middle(after), "bytes": written}


def _noting(count: int = 200, rounds: int = 9) -> list[float]:
    """Milliseconds of processor that it takes to note a batch of the demo's shape, whatever else the machine does."""
    import torch
    from torch.utils.data import DataLoader

    found = []
    with tempfile.TemporaryDirectory(prefix="allranks-bench-") as folder:
        loader = DataLoader(torch.zeros(count * BATCH, CONTEXT + 1, dtype=torch.long), BATCH)
        given = list(loader)
        for at in range(rounds):
            epoch = probe.Epoch(probe.Notes(str(Path(folder) / f"{at}.jsonl"), count), loader, 0, 0)
            for number in range(count):
                epoch.took(list(range(number * BATCH, (number + 1) * BATCH)))
            began = time.thread_time()
            for batch in given:
                epoch.batch(batch)
            found.append(1e3 * (time.thread_time() - began) / count)
    return found


def _step(count: int = 25) -> list[float]:
    """Milliseconds of processor of the demo's own steps, in one thread."""
    import torch

    demo = runpy.run_path(str(SCRIPT))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model = demo["LanguageModel"](CONTEXT, LAYERS, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    for _ in range(count):
        began = time.thread_time()
        loss = model(torch.randint(0, 255, (BATCH, CONTEXT + 1)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(1e3 * (time.thread_time() - began))
    torch.set_num_threads(before)
    return found


def _middle(values: Sequence[float]) -> float:
    return 1e3 * statistics.median(values)


def run(quick: bool) -> Report:
    """One rank, so that nothing but the step itself is in a step; the first half of the steps is audited."""
    steps, rounds = (60, 1) if quick else (300, 7)
    report = Report("audit", f"audit: the demo on one rank, {steps} steps, the first {steps // 2} audited")
    for workers in (0, 2):
        cases = {
            f"{OFF}, {workers} workers": lambda workers=workers: _train(steps, 0, workers),
            f"{ON}, {workers} workers": lambda workers=workers: _train(steps, steps // 2, workers),
        }
        report.samples.update(alternate(cases, rounds, alone=True))
        without, audited = (report.samples[label] for label in cases)
        for part, aim in (("during", 2.0), ("after", 1.0)):
            before, now = column(without, part), column(audited, part)
            report.add(f"{workers} workers, {part}: a step without", before, "ms")
            report.add(f"{workers} workers, {part}: a step with the audit", now, "ms")
            more = [100 * (b / a - 1) for a, b in zip(before, now, strict=False)]
            words = "< 2 %" if part == "during" else "none (< 1 %, noise)"
            report.add(f"{workers} workers, {part}: more", more, "%", words, lambda v, aim=aim: v < aim)
        report.add(f"{workers} workers: bytes a batch", [v / (steps // 2) for v in column(audited, "bytes")], "bytes")
    step, noting = _step(), _noting()
    report.add("a step, processor time alone", step, "ms")
    report.add("a batch noted, processor time alone", noting, "ms")
    share = [100 * value / statistics.median(step) for value in noting]
    report.add("noting of a step, processor time alone", share, "%", "< 2 %", lambda v: v < 2)
    report.remark()
    return report
