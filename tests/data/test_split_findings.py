"""The judge by rows made here: placements, what cannot be seen."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.data.rows import Row, read_row
from allranks.data.split_findings import judge
from allranks.findings import Finding

FACTS = {"class": "DataLoader", "dataset": "D", "style": "map", "batch": 2, "workers": 0, "drop_last": False}


def loader(rank: int, index: list | None, content: list[str], end: bool = False, batch: int = 2, **more) -> list[dict]:
    """The rows of one rank's loader."""
    facts = {**FACTS, "batch": batch, **more}
    rows = [{"kind": "data-rank", "rank": rank}, {"kind": "data-loader", "rank": rank, "loader": 0, **facts}]
    for at in range(0, len(content), batch):
        rows.append({
            "kind": "data-batch", "rank": rank, "loader": 0, "epoch": 0, "n": len(content[at : at + batch]),
            "index": index and index[at : at + batch], "hash": content[at : at + batch], "part": None,
            "grad": more.get("grad", True),
        })  # fmt: skip
    if end:
        number = -(-len(content) // batch)
        rows.append({"kind": "data-end", "rank": rank, "loader": 0, "epoch": 0, "batches": number})
    return rows


def by(share, ranks: int = 16, **more) -> list[dict]:
    """Rows of ranks that read what `share(rank)` gives."""
    return [
        row
        for rank in range(ranks)
        for row in loader(rank, list(share(rank)), [f"s{i}" for i in share(rank)], **more)
    ]


def on_nodes(local: int) -> dict[int, tuple[str, int]]:
    return {rank: (f"h{rank // local}", rank % local) for rank in range(16)}


def read(rows: list[dict]) -> list[Row]:
    """As they are read of the ranks' files."""
    read = [read_row(json.dumps(row).encode()) for row in rows]
    return [row for row in read if row is not None]


def said(rows: list[dict], layout=None) -> list[tuple[str, str, str]]:
    return [(one.id, one.status, one.message) for one in judged(rows, layout)]


def judged(rows: list[dict], layout=None) -> list[Finding]:
    """The findings; without a layout all ranks are on one node."""
    known = read(rows)
    return judge(known, layout or {row.rank or 0: ("h0", row.rank or 0) for row in known})


GROUPS = "ranks 0-1, 2-3, 4-5 and 3 more among themselves read the same samples: the loader splits by node only"


@pytest.mark.parametrize(
    ("share", "ranks", "local", "message"),
    [
        (lambda rank: rank // 8 * 100, 16, 4, "ranks 0-7 and 8-15 among themselves read the same samples"),
        (lambda rank: 50 if rank in (3, 5) else rank * 100, 16, 8, "ranks 3,5 read the same samples"),
        (lambda rank: rank // 2 * 10, 12, 4, GROUPS),
    ],
    ids=["not by node", "one pair alone", "many groups are cut short"],
)
def test_who_reads_the_same(share, ranks: int, local: int, message: str) -> None:
    found = said(by(lambda rank: range(share(rank), share(rank) + 8), ranks), on_nodes(local))
    assert found == [("data-same-samples", "fail", message)]


def test_length_that_does_not_shrink() -> None:
    chance = random.Random(1)
    shares = [chance.sample(range(10**7), 8) for _ in range(16)]
    same = {"sampler_len": 10**7, "dataset_len": 10**7, "identity": "one"}
    found = said(by(shares.__getitem__, **same))
    assert found[0][:2] == ("data-not-sharded", "fail")
    assert "does not shrink with the world size: each of 16 ranks would read all 10,000,000 samples" in found[0][2]
    unsure = said(by(shares.__getitem__, **{**same, "identity": ""}))
    assert unsure[0][:2] == ("data-not-sharded", "unknown")


def test_the_fix_also_says_how_accelerate_splits() -> None:
    rows = by(lambda _: range(8))
    assert "accelerator.prepare(loader)" in judged(rows)[0].remedy


def share_by_chance(rank: int) -> list[int]:
    return random.Random(rank).choices(range(100), k=20)


def texts(rank: int) -> list[str]:
    """Few of which another rank has too."""
    return [*(f"{rank}-{i}" for i in range(199)), "the same line" if rank < 2 else "x" * rank]


def streams(content, **more) -> list[dict]:
    """Rows of four ranks that read streams."""
    return [row for rank in range(4) for row in loader(rank, None, content(rank), style="iterable", **more)]


BY_RANK_0 = {"class": "DataLoaderDispatcher", "module": "accelerate.data_loader"}
CARRIED = [{"kind": "data-rank", "rank": rank} for rank in range(4)]


@pytest.mark.parametrize(
    ("rows", "expected", "words"),
    [
        (by(lambda _: range(8), grad=False), ("data-not-sharded", "warn"), "harmless if it evaluates"),
        (by(share_by_chance, 4, replacement=True), ("data-overlap", "fail"), "by chance"),
        (streams(texts), ("data-audit", "ok"), "data is split"),
        (streams(lambda _: ["zeros"] * 20), ("data-audit", "unknown"), ""),
        (streams(lambda rank: [f"{rank}-{i}" for i in range(8 if rank else 10)], end=True), ("uneven-data", "fail"),
         "unequal numbers of batches: rank 0 has 5, ranks 1-3 have 4"),
        ([], ("data-audit", "unknown"), "no rank carried the audit"),
        (CARRIED[:2], ("data-audit", "unknown"), "no torch DataLoader was iterated on ranks 0-1"),
        ([*loader(0, None, ["a", "b"], **BY_RANK_0), *CARRIED], ("data-dispatched", "ok"), ""),
    ],
    ids=["evaluation", "overlap", "a few equal texts", "look alike", "uneven", "nothing", "no loader", "dispatched"],
)  # fmt: skip
def test_what_is_found(rows: list[dict], expected: tuple[str, str], words: str) -> None:
    found = said(rows)
    assert [one[:2] for one in found] == [expected] and words in found[0][2]


def test_set_epoch() -> None:
    def rows(set_to: list, orders: list[str], **more) -> list[dict]:
        found = by(lambda rank: range(rank * 8, rank * 8 + 8), 2, has_set_epoch=True, shuffle=True, **more)
        for epoch, (value, order) in enumerate(zip(set_to, orders, strict=True)):
            found += [{"kind": "data-epoch", "rank": r, "loader": 0, "epoch": epoch, "set_to": value, "order": order}
                      for r in (0, 1)]  # fmt: skip
        return found

    assert said(rows([0, 0], ["a", "a"]))[0][:2] == ("data-set-epoch", "warn")
    assert [one[1] for one in said(rows([0, 1], ["a", "b"]))] == ["ok"]
    assert [one[1] for one in said(rows([0], ["a"]))] == ["ok"]


@given(st.integers(1, 12), st.integers(1, 200), st.integers(1, 5), st.booleans())
def test_what_distributed_sampler_gives_is_right(world: int, size: int, batch: int, whole: bool) -> None:
    each = -(-size // world)
    padded = (list(range(size)) * (each * world // size + 1))[: each * world]
    rows = []
    for rank in range(world):
        mine = padded[rank::world]
        mine = mine if whole else mine[: 3 * batch]
        rows += loader(rank, mine, [f"s{i}" for i in mine], whole, batch, sampler_len=each, dataset_len=size,
                       replicas=world, identity="one")  # fmt: skip
    if world <= size:
        assert {one.status for one in judged(rows)} == {"ok"}


NAMES = ("kind", "rank", "loader", "n", "hash", "index", "batches", "part", "dataset_len", "epoch")
VALUES = st.one_of(
    st.none(), st.integers(), st.text(max_size=8), st.lists(st.text(max_size=4), max_size=4),
    st.lists(st.lists(st.integers(), max_size=3), max_size=3),
    st.sampled_from(["data-batch", "data-loader", "data-end", "data-epoch"]),
)  # fmt: skip
ROW = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, VALUES))


@given(st.lists(ROW, max_size=8))
def test_rows_of_any_kind_are_borne(rows: list[dict]) -> None:
    assert judged(rows)


def test_rows_that_do_not_fit_are_left_out() -> None:
    rows = [{"kind": "data-batch", "hash": ["a"], "n": 1}, {"kind": "data-batch", "hash": [1]}, {"kind": ["x"]}, {}]
    assert [type(row).__name__ for row in read(rows)] == ["BatchRow"]
    assert read_row(b"[" * 5000) is None and read_row(b"\xff") is None and read_row(b"[1]") is None
