"""Run directories that tests make: documents, events and logs as a run leaves them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.gang.recording import NAME, UsageSample
from allranks.protocol.codec import decode_each
from allranks.runs.directory import RunDirectory
from allranks.runs.regular import open_regular, read_objects

T = 1_795_000_000.0
Document = dict[str, Any]


def event(after: float, event: str, **fields: Any) -> Document:
    """A fact of the only attempt, so long after the start."""
    return {"t": T + after, "event": event, "attempt": 0, **fields}


def events(nodes: Mapping[str, list[int]], failing: int | None = 1) -> list[Document]:
    """A run of one attempt in which one rank fails and the others are ended."""
    first = next(iter(nodes), "")
    found = []
    for i, (node, ranks) in enumerate(nodes.items()):
        found += [event(0.1 + i / 10, "node-connecting", node=node)]
        found += [event(0.6 + i / 10, "node-ready", node=node, hostname=node)]
        for rank in ranks:
            mine = rank == failing
            expected = failing is not None and not mine
            found += [
                event(1.2, "rank-started", node=node, rank=rank, pid=7),
                event(2, "rank-initialised", node=node, rank=rank),
                event(9 if mine else 10, "rank-exit", node=node, rank=rank, expected=expected, code=int(mine)),
            ]
    found += [
        event(0, "attempt-start"),
        event(1, "gate-listening", node=first, port=1),
        event(1.1, "gate-proved", node=first, seconds=0.1),
        event(2, "all-initialised", seconds=2.0),
        event(3.2, "first-step", seconds=3.0),
        event(10, "attempt-end", outcome="done" if failing is None else "failed"),
    ]
    begin = {"t": T, "event": "run-start", "run": "r"}
    end = {"t": T + 10.1, "event": "run-end", "exit": 0 if failing is None else 1}
    return [begin, *sorted(found, key=lambda e: float(e["t"])), end]


def make(
    directory: Path,
    nodes: Mapping[str, list[int]],
    logs: Mapping[int, bytes] | None = None,
    failing: int | None = 1,
    message: str = "rank 1 raised ValueError: bad batch",
    **run: Any,
) -> Path:
    """The directory of a run that is over."""
    directory.mkdir(parents=True)
    document = {
        "schema": 1,
        "run": directory.name,
        "started": T,
        "command": ["train.py"],
        "spec": {},
        "nodes": [{"name": n, "index": i, "host": n} for i, n in enumerate(nodes)],
        "versions": {"allranks": "1"},
        "source": "--hosts x",
        "workdir": "/w",
        **run,
    }
    verdict = {
        "schema": 1,
        "id": "program-exception",
        "cause": "program-exception",
        "attempt": 0,
        "status": "fail",
        "where": {"node": next(iter(nodes)), "rank": failing},
        "message": message,
        "remedy": "fix <it>\nallranks logs --rank 1",
        "evidence": ["train.py:3", message],
        "confidence": 0.85,
        "victims": [0],
        "detected_after_s": 0.1,
        "runners_up": [],
    }
    failed = failing is not None
    result = {
        "schema": 1,
        "run": directory.name,
        "exit": 1 if failed else 0,
        "verdict": verdict if failed else None,
        "findings": [{"id": "shm", "status": "warn", "message": "small /dev/shm", "where": {}}],
        "attempts": [{"attempt": 0, "outcome": "failed"}],
        "timing": {"total": 10.1},
    }
    status = {
        "schema": 1,
        "state": "failed" if failed else "done",
        "world_size": sum(map(len, nodes.values())),
        "nodes": [{"name": n, "ranks": [{"rank": r} for r in some]} for n, some in nodes.items()],
    }
    documents = {"run": document, "result": result, "status": status, **({"verdict": verdict} if failed else {})}
    for name, content in documents.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    told = [e for e in events(nodes, failing) if e["event"] != "attempt-start"]  # so the kept verdict stands
    (directory / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in told))
    for i, (node, some) in enumerate(nodes.items()):
        folder = directory / "logs" / f"node_{i:02d}_{node}"
        folder.mkdir(parents=True)
        for rank in some:
            text = (logs or {}).get(rank, f"rank {rank} is up\n".encode())
            (folder / f"rank_{rank:03d}.log").write_bytes(text)
    return directory


def read_usage(run: RunDirectory) -> list[UsageSample]:
    """The samples of evidence/usage.jsonl; none where there is no such file yet."""
    try:
        with open_regular(run.path / "evidence" / NAME) as file:
            return decode_each(UsageSample, list(read_objects(file.read())))
    except FileNotFoundError:
        return []
