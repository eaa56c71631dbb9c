"""Which rank this is, and the store through which ranks agree: beside the tested process group, never through it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

SPARE = 30.0  # seconds by which the store is more patient than the watchdog: the watchdog speaks first
LEAVE = 10.0  # seconds that rank 0, which holds the store, waits for the others at the end

c10d: Any = dist  # torch gives its stores their names at run time: type checkers do not see them


class Job:
    """The place of this rank, as torchrun's environment says it."""

    def __init__(self, env: Mapping[str, str], limit: float) -> None:
        self.rank, self.world = int(env["RANK"]), int(env["WORLD_SIZE"])
        self.local_rank = int(env.get("LOCAL_RANK", "0"))
        self.ranks_here = int(env.get("LOCAL_WORLD_SIZE", "1"))
        self.node = int(env.get("GROUP_RANK", self.rank // self.ranks_here))
        self.host, self.port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
        self.hostname = socket.gethostname()
        self.agents_store = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.holds_store = self.rank == 0 and not self.agents_store
        self.attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.limit = limit
        self.store = self.client(first=True)
        self.nodes: dict[int, list[int]] = {}

    def client(self, first: bool = False) -> Any:
        """A connection to the store at MASTER_ADDR:MASTER_PORT; rank 0 opens it unless torchrun's agent has.

        init_process_group finds the same one there (multi_tenant). A blocked client blocks every thread that uses
        it, so the watchdog has its own.
        """
        store = c10d.TCPStore(
            self.host,
            self.port,
            None,
            is_master=first and self.holds_store,
            timeout=timedelta(seconds=self.limit if first else self.limit + SPARE),
            wait_for_workers=False,
            multi_tenant=True,
        )
        store.set_timeout(timedelta(seconds=self.limit + SPARE))
        return c10d.PrefixStore(f"allranks/{self.attempt}", store)

    def collect(self, name: str, value: Any) -> list[Any] | None:
        """Every rank's value, by rank, on rank 0; None elsewhere."""
        self.store.set(f"{name}/{self.rank}", json.dumps(value))
        if self.rank != 0:
            return None
        return [json.loads(self.store.get(f"{name}/{rank}")) for rank in range(self.world)]

    def announce(self, name: str, value: Any) -> Any:
        """What rank 0 says, on every rank."""
        if self.rank == 0:
            self.store.set(f"{name}/all", json.dumps(value))
            return value
        return json.loads(self.store.get(f"{name}/all"))

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Every rank's value, by rank, on every rank; through rank 0, so that it costs two messages a rank."""
        found: list[Any] = self.announce(name, self.collect(name, value))
        return found

    def learn_nodes(self, nodes: list[int]) -> None:
        """Which ranks share a node, from the node of each rank."""
        self.nodes = {node: [r for r, other in enumerate(nodes) if other == node] for node in sorted(set(nodes))}

    def leave(self) -> None:
        """The rank that holds the store goes last."""
        with contextlib.suppress(RuntimeError):  # the store's own, where others have gone before
            self.store.set(f"left/{self.rank}", "1")
            if self.holds_store:
                self.store.wait([f"left/{rank}" for rank in range(self.world)], timedelta(seconds=LEAVE))


MEMINFO = "/proc/meminfo"
CGROUPS = (("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
           ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"))  # fmt: skip


def read(path: str) -> str:
    """A small file's text; nothing where it can't be read."""
    if not os.path.exists(path):
        return ""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
