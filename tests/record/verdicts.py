"""Keeps what the runs of tests ended with where ALLRANKS_RECORD names a directory: to compare two trees."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.record.calls import normal

KEPT = ("exit", "program_exit", "verdict", "findings", "attempts")


def keep(document: dict[str, Any], events: Sequence[dict[str, Any]]) -> None:
    """Write the end of a run and how often each event came, under the name of the test that runs."""
    directory = os.environ.get("ALLRANKS_RECORD")
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
    if not directory or not test:
        return
    Path(directory).mkdir(parents=True, exist_ok=True)
    counts = Counter(str(event.get("event")) for event in events)
    shown = {**{key: document.get(key) for key in KEPT}, "events": dict(sorted(counts.items()))}
    text = normal(json.dumps(shown, indent=1, sort_keys=True), str(Path.cwd()))
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", test)[:150]
    with (Path(directory) / f"{name}.txt").open("a", encoding="utf-8") as file:
        file.write(text + "\n")
