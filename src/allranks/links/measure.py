"""What one measurement of a pair of nodes found (pure). Times are seconds, bandwidths bytes a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Cell = tuple[str, str, int]  # node, node, rail: what is judged


@dataclass(frozen=True)
class Way:
    """One direction of a link; None where it was not measured.

    `bandwidth`: bytes/s of a large payload that way. `latency`: the median round trip, in seconds, of many small
    messages that the sending side starts. `tail`: their 99th percentile (200 of them or more make it steady);
    a lost packet shows there first, as Linux repeats it after 200 ms (TCP_RTO_MIN).
    """

    bandwidth: float | None = None
    latency: float | None = None
    tail: float | None = None


@dataclass(frozen=True)
class Measurement:
    """A pair measured once, on one rail: `there` is from `a` to `b`, `back` from `b` to `a`.

    `dead` is empty, or the reason why nothing could be measured (`timed out after 10 s`, `connection refused`).
    `rail` is the index of the interface where nodes have several for training, else 0; `interfaces` are its
    names on `a` and on `b`, where known. `round` counts from 0; re-tests go on counting.
    """

    a: str
    b: str
    round: int
    there: Way = Way()
    back: Way = Way()
    dead: str = ""
    rail: int = 0
    interfaces: tuple[str, str] = ("", "")

    def cell(self) -> Cell:
        """The pair in its own order, whoever was named first, and the rail."""
        return (*sorted((self.a, self.b)), self.rail)  # type: ignore[return-value]

    def way(self, start: str) -> Way:
        """The direction that starts at this node."""
        return self.there if start == self.a else self.back

    def interface(self, node: str) -> str:
        """The interface's name on this end; empty where unknown."""
        return self.interfaces[0 if node == self.a else 1]

    def to_json(self) -> dict[str, Any]:
        """One row of `"links"` in `test --json`."""
        return {**asdict(self), "interfaces": list(self.interfaces)}


def from_json(row: Mapping[str, Any]) -> Measurement:
    """The measurement of a row; what is absent has its default."""
    there, back = (Way(**(row.get(name) or {})) for name in ("there", "back"))
    names = row.get("interfaces") or ("", "")
    return Measurement(
        a=row["a"],
        b=row["b"],
        round=int(row.get("round", 0)),
        there=there,
        back=back,
        dead=row.get("dead") or "",
        rail=int(row.get("rail") or 0),
        interfaces=(str(names[0]), str(names[1])),
    )


@dataclass(frozen=True)
class Floors:
    """What the user asks of every link, whatever the others have: at least `bandwidth` bytes/s each way, at most
    `latency` seconds of median round trip."""

    bandwidth: float | None = None
    latency: float | None = None


def bits(bandwidth: float) -> str:
    """Bytes/s as networks are rated: `49 Mbit/s`, `9.4 Gbit/s`."""
    rate = bandwidth * 8
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if rate < 999.5:
            return f"{rate:.3g} {unit}"
        rate /= 1000
    return f"{rate:.3g} Gbit/s" if rate < 999.5 else f"{rate:.0f} Gbit/s"


def span(seconds: float) -> str:
    """`85 µs`, `50.3 ms`, `1.2 s`."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
