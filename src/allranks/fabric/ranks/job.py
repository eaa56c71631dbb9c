"""Which rank this is, and the store through which ranks agree: beside the tested process group, never through it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import TypeVar

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from allranks.protocol.codec import decode, encode, read_json, write_json

SLACK = 30.0  # seconds by which the store is more patient than the watchdog: the watchdog speaks first
LEAVE = 10.0  # seconds that rank 0, which holds the store, waits for the others at the end
LARGEST = 64 << 20  # bytes of a value
STORE_ERRORS = (RuntimeError, OSError)  # what a store that does not answer raises; torch's own derive from RuntimeError
UNSET = "allranks: not set"  # no value of a key: records are JSON

T = TypeVar("T")


def put(store: Store, key: str, value: object) -> None:
    """Write a record, or containers of records, into the store."""
    store.set(key, write_json(encode(value)).decode())


def take(store: Store, key: str, kind: type[T]) -> T:
    """Wait for a key and read its record."""
    return decode(kind, read_json(store.get(key), LARGEST))


def is_set(store: Store, key: str) -> bool:
    """Tell whether a key has a value, without waiting for it.

    Torch before 2.3 has no `check` (https://github.com/pytorch/pytorch/pull/116144). Its TCPStore gives the expected
    value back where a key is absent, and sets the key only where that value is empty (TCPStore.cpp,
    compareSetHandler).
    """
    if hasattr(store, "check"):
        return store.check([key])
    return store.compare_set(key, UNSET, UNSET) != UNSET.encode()


class SuiteJob:
    """The place of this rank, as torchrun's environment says it, and its connection to the store."""

    def __init__(self, env: Mapping[str, str], limit: float) -> None:
        self.rank = int(env["RANK"])
        self.world = int(env["WORLD_SIZE"])
        self.local_rank = int(env.get("LOCAL_RANK", "0"))
        self.ranks_here = int(env.get("LOCAL_WORLD_SIZE", "1"))
        self.node = int(env.get("GROUP_RANK", self.rank // self.ranks_here))
        self.host = env["MASTER_ADDR"]
        self.port = int(env["MASTER_PORT"])
        self.hostname = socket.gethostname()
        self.agents_store = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.holds_store = self.rank == 0 and not self.agents_store
        self.attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.limit = limit
        self.store = self._connect(self.holds_store, limit)

    def connect(self) -> PrefixStore:
        """Open one more connection: a blocked one blocks every thread that uses it."""
        return self._connect(False, self.limit + SLACK)

    def _connect(self, is_master: bool, seconds: float) -> PrefixStore:
        """Connect to the store at MASTER_ADDR:MASTER_PORT, or open it, within so many seconds.

        Rank 0 opens it unless torchrun's agent has; init_process_group finds the same one there (multi_tenant).
        """
        store = TCPStore(
            self.host,
            self.port,
            None,
            is_master=is_master,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
        store.set_timeout(timedelta(seconds=self.limit + SLACK))
        return PrefixStore(f"allranks/{self.attempt}", store)

    def collect(self, name: str, value: T) -> list[T]:
        """Give every rank's value, by rank, to rank 0; an empty list elsewhere."""
        put(self.store, f"{name}/{self.rank}", value)
        if self.rank != 0:
            return []
        return [take(self.store, f"{name}/{rank}", type(value)) for rank in range(self.world)]

    def announce(self, name: str, kind: type[T], value: T | None) -> T:
        """Give rank 0's value to every rank; the others pass None."""
        key = f"{name}/all"
        if value is None:
            return take(self.store, key, kind)
        put(self.store, key, value)
        return value

    def exchange(self, name: str, value: T) -> list[T]:
        """Give every rank's value, by rank, to every rank; through rank 0, so that it costs two messages a rank."""
        values = self.collect(name, value)
        key = f"{name}/all"
        if self.rank == 0:
            put(self.store, key, values)
            return values
        rows = read_json(self.store.get(key), LARGEST)
        assert isinstance(rows, list)
        return [decode(type(value), row) for row in rows]

    def leave(self) -> None:
        """Go; the rank that holds the store goes last."""
        with contextlib.suppress(RuntimeError):  # the store's own, where others have ended before
            self.store.set(f"left/{self.rank}", "1")
            if self.holds_store:
                self.store.wait([f"left/{rank}" for rank in range(self.world)], timedelta(seconds=LEAVE))
