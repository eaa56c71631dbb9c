"""Durations and sizes: what is read as what, what is refused, and that formatting reads back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.outcome import outcome

from allranks.text import parse_duration, parse_size


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("500ms", 0.5), ("8s", 8), ("10m", 600), ("2h", 7200), ("1d", 86400), ("1h30m", 5400),
        ("1.5h", 5400), ("0", 0), ("90", 90), ("0.25", 0.25), (" 8s ", 8), (8, 8), (2.5, 2.5), ("1m500ms", 60.5),
        ("100us", 0.0001), ("1ms500us", 0.0015),
    ],
)  # fmt: skip
def test_durations(value: object, seconds: float) -> None:
    assert parse_duration(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "-1", "-1s", "1e3", "nan", "inf", "1 h", "1x", "s", "ms", "m10", "1s1m", "1s1s", "8S", "٣s",
        "1_0", "0x10", "+1", "9" * 400, "367d", "1h\n", float("nan"), float("inf"), -0.5, -1, 10**400, True,
        None, [], {}, b"1s",
    ],
)  # fmt: skip
def test_refused_durations(value: object) -> None:
    with pytest.raises(ValueError, match=r"^a duration such as 500ms"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("64KB", 65536), ("64KiB", 65536), ("64k", 65536), ("256MB", 256 << 20), ("1GB", 1 << 30),
        ("1.5GB", 3 << 29), ("2TB", 2 << 40), ("10", 10), ("10B", 10), ("1 GB", 1 << 30), (7, 7), ("0", 0),
        ("1gib", 1 << 30), (1024.0, 1024),
    ],
)  # fmt: skip
def test_sizes(value: object, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize(
    "value",
    [
        "", "KB", "-1KB", "1PB", "1e9", "nan", "inf", "1KBB", "1 KB x", "9" * 400, "9999999999TB",
        float("nan"), float("inf"), -1, 2**63, 10**400, True, None, [], "1iB",
    ],
)  # fmt: skip
def test_refused_sizes(value: object) -> None:
    with pytest.raises(ValueError, match=r"^a size such as 64KB"):
        parse_size(value)


@given(st.text(alphabet="0123456789.dhmskMGTiB -+e", max_size=12) | st.text() | st.floats() | st.integers())
def test_anything_is_read_or_refused(value: object) -> None:
    for parse in (parse_duration, parse_size):
        number = outcome(ValueError, parse, value)
        if isinstance(number, ValueError):
            assert str(number).startswith(("a duration such as", "a size such as"))
        else:
            assert 0 <= number < 2**63
