"""Lists, ranges, counts, sizes and durations as people read them, and what they type."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.outcome import outcome

from allranks.text import (
    count_of,
    cut,
    error_line,
    first_line,
    format_bit_rate,
    format_choice,
    format_duration,
    format_elapsed,
    format_number,
    format_percent,
    format_ranges,
    format_ranks,
    format_rate,
    format_size,
    format_size_option,
    format_time,
    join_words,
    name_with,
    parse_duration,
    parse_size,
    plural,
)


@pytest.mark.parametrize(
    ("write", "written"),
    [
        (join_words, {"": [], "h1": ["h1"], "h1 and h2": ["h1", "h2"], "h1, h2 and h3": ["h1", "h2", "h3"]}),
        (partial(join_words, limit=4), {"h1, h2, h3 and h4": ["h1", "h2", "h3", "h4"]}),
        (partial(join_words, limit=4), {"h1, h2, h3 and 2 more": ["h1", "h2", "h3", "h4", "h5"]}),
        (partial(join_words, conjunction="or"), {"stop or report": ["stop", "report"]}),
        (format_ranks, {"rank 2": [2], "ranks 0-1": [0, 1], "ranks 0-2,5": [0, 1, 2, 5]}),
        (format_ranges, {"": [], "3": [3], "0-2,7": [2, 0, 1, 7, 7], "1,3,5": [5, 1, 3], "4-5": [4, 5]}),
        (partial(count_of, one="rank"), {"0 ranks": 0, "1 rank": 1, "2 ranks": 2}),
        (partial(count_of, one="process", many="processes"), {"2 processes": 2}),
        (partial(plural, one="is", many="are"), {"is": 1, "are": 3}),
        (partial(cut, limit=4), {"abc…": "abcdef", "abcd": "abcd"}),
        (partial(first_line, limit=20), {"the first": "\n  \n  the first\nsecond", "": " \n"}),
        (error_line, {"no route": OSError("\nno route\nto h2"), "TimeoutError": TimeoutError()}),
        (format_time, {"85 µs": 0.000085, "50.3 ms": 0.0503, "1.2 s": 1.2, "600 s": 600, "1 s": 0.9999, "0 s": 0}),
        (format_time, {"1234567 s": 1234567.0}),
        (format_rate, {"0.5 B/s": 0.5, "850 MB/s": 850e6, "1 GB/s": 999.7e6, "12.3 GB/s": 12.34e9, "2000 GB/s": 2e12}),
        (format_bit_rate, {"4 bit/s": 0.5, "50 Mbit/s": 6.25e6, "10 Gbit/s": 1250e6, "1 Gbit/s": 125e6}),
        (format_bit_rate, {"400 Gbit/s": 50e9, "2000 Gbit/s": 250e9}),
        (format_percent, {"8 %": 0.084, "under 1 %": 0.0001, "0 %": 0, "100 %": 1}),
        (format_elapsed, {"0.35 s": 0.354, "12.0 s": 12.04, "1 min 0 s": 59.96, "3 min 5 s": 185}),
        (format_elapsed, {"9 h 12 min": 33_120, "2 d 7 h": 200_000}),
        (format_number, {"1.23": 1.23456, "100": 99.6, "1000000000": 1e9}),
        (format_duration, {"0s": 0, "100us": 0.0001, "1500us": 0.0015, "250ms": 0.25, "8s": 8, "8.25s": 8.25}),
        (format_duration, {"1m30s": 90, "10m": 600, "1d2h3m4s": 93784}),
        (format_size, {"0 B": 0, "1023 B": 1023, "64 KB": 65536, "1.5 GB": 3 << 29, "5 TB": 5 << 40}),
        (format_size, {"1 MB": (1 << 20) + 1}),
        (partial(name_with, "h1"), {"h1 (10.0.0.1)": "10.0.0.1", "h1": ""}),
        (partial(name_with, "192.168.1.10"), {"192.168.1.10": "192.168.1.10"}),
        (partial(name_with, ""), {"10.0.0.1": "10.0.0.1", "?": ""}),
        (format_choice, {"from 1 to 4": 4, "1": 1}),
    ],
)
def test_words_and_figures_as_people_read_them(write: Callable[[Any], str], written: dict[str, Any]) -> None:
    assert {write(value): value for value in written.values()} == written


@given(st.sets(st.integers(0, 300)))
def test_ranges_hold_exactly_their_numbers(numbers: set[int]) -> None:
    read = set()
    for part in format_ranges(numbers).split(",") if numbers else []:
        low, _, high = part.partition("-")
        read |= set(range(int(low), int(high or low) + 1))
    assert read == numbers


@given(st.integers(0, 999_999))
def test_durations_below_a_second_read_back_to_the_microsecond(microseconds: int) -> None:
    again = parse_duration(format_duration(microseconds / 1_000_000))
    assert round(again * 1_000_000) == microseconds


@given(st.integers(0, 366 * 86400 * 1000))
def test_durations_read_back_to_the_millisecond(milliseconds: int) -> None:
    again = parse_duration(format_duration(milliseconds / 1000))
    assert round(again * 1000) == milliseconds


@given(st.integers(0, 1023), st.sampled_from(["B", "KB", "MB", "GB", "TB"]))
def test_whole_sizes_read_back(count: int, unit: str) -> None:
    size = parse_size(f"{count}{unit}")
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 2**62))
def test_a_size_is_one_word_of_a_command_line(size: int) -> None:
    word = format_size_option(size)
    assert " " not in word
    assert abs(parse_size(word) - size) <= max(1, size // 100)


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
    assert parse_duration("16h15.16s13ms7us") == 57615.173007, "parts add no error of their own"


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
