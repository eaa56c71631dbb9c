"""Lists, ranges, counts, sizes and durations as people read them, and what they type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    ("words", "limit", "text"),
    [
        ([], 0, ""), (["h1"], 0, "h1"), (["h1", "h2"], 0, "h1 and h2"), (["h1", "h2", "h3"], 0, "h1, h2 and h3"),
        (["h1", "h2", "h3", "h4", "h5"], 4, "h1, h2, h3 and 2 more"),
        (["h1", "h2", "h3", "h4"], 4, "h1, h2, h3 and h4"),
    ],
)  # fmt: skip
def test_words_are_joined_as_a_sentence_does(words: list[str], limit: int, text: str) -> None:
    assert join_words(words, limit=limit) == text


def test_ranks_are_named() -> None:
    assert [format_ranks(ranks) for ranks in ([2], [0, 1], [0, 1, 2, 5])] == ["rank 2", "ranks 0-1", "ranks 0-2,5"]


def test_words_are_joined_by_another_conjunction() -> None:
    assert join_words(["stop", "report"], "or") == "stop or report"


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([2, 0, 1, 7, 7], "0-2,7"), ([5, 1, 3], "1,3,5"), ([4, 5], "4-5")]
)
def test_numbers_are_written_as_ranges(numbers: list[int], text: str) -> None:
    assert format_ranges(numbers) == text


@given(st.sets(st.integers(0, 300)))
def test_ranges_hold_exactly_their_numbers(numbers: set[int]) -> None:
    read = set()
    for part in format_ranges(numbers).split(",") if numbers else []:
        low, _, high = part.partition("-")
        read |= set(range(int(low), int(high or low) + 1))
    assert read == numbers


def test_a_count_agrees_with_its_noun_and_verb() -> None:
    assert [count_of(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert [plural(n, "is", "are") for n in (1, 3)] == ["is", "are"]
    assert count_of(2, "process", "processes") == "2 processes"


def test_texts_are_cut_and_say_so() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcd", 4) == "abcd"
    assert first_line("\n  \n  the first\nsecond", 20) == "the first"
    assert first_line(" \n", 20) == ""


def test_an_error_says_its_first_line_or_its_type() -> None:
    assert error_line(OSError("\nno route\nto h2")) == "no route"
    assert error_line(TimeoutError()) == "TimeoutError"
    assert error_line(OSError("x" * 9), 4) == "xxx…"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.000085, "85 µs"), (0.0503, "50.3 ms"), (1.2, "1.2 s"), (600, "600 s"), (0.9999, "1 s"), (0, "0 s"),
     (1234567.0, "1234567 s")],
)  # fmt: skip
def test_measured_times(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.5, "0.5 B/s"), (850e6, "850 MB/s"), (999.7e6, "1 GB/s"), (12.34e9, "12.3 GB/s"), (2000e9, "2000 GB/s")],
)
def test_rates_of_collectives(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.5, "4 bit/s"), (6.25e6, "50 Mbit/s"), (1250e6, "10 Gbit/s"), (125e6, "1 Gbit/s"), (50e9, "400 Gbit/s"),
     (250e9, "2000 Gbit/s")],
)  # fmt: skip
def test_rates_of_networks(rate: float, text: str) -> None:
    assert format_bit_rate(rate) == text


@pytest.mark.parametrize(("share", "text"), [(0.084, "8 %"), (0.0001, "under 1 %"), (0, "0 %"), (1, "100 %")])
def test_shares(share: float, text: str) -> None:
    assert format_percent(share) == text


def test_how_long_something_took() -> None:
    written = [format_elapsed(seconds) for seconds in (0.354, 12.04, 59.96, 185, 33_120, 200_000)]
    assert written == ["0.35 s", "12.0 s", "1 min 0 s", "3 min 5 s", "9 h 12 min", "2 d 7 h"]


def test_figures_have_three_digits_and_no_exponent() -> None:
    assert [format_number(v) for v in (1.23456, 99.6, 1e9)] == ["1.23", "100", "1000000000"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0001, "100us"), (0.0015, "1500us"), (0.25, "250ms"),
     (8, "8s"), (8.25, "8.25s"), (90, "1m30s"), (600, "10m"), (93784, "1d2h3m4s")],
)  # fmt: skip
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (65536, "64 KB"), (3 << 29, "1.5 GB"), (5 << 40, "5 TB"), ((1 << 20) + 1, "1 MB")],
)
def test_format_size(size: int, text: str) -> None:
    assert format_size(size) == text


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
    ("name", "detail", "text"),
    [
        ("h1", "10.0.0.1", "h1 (10.0.0.1)"),
        ("192.168.1.10", "192.168.1.10", "192.168.1.10"),
        ("h1", "", "h1"),
        ("", "10.0.0.1", "10.0.0.1"),
        ("", "", "?"),
    ],
)
def test_a_name_with_a_detail(name: str, detail: str, text: str) -> None:
    assert name_with(name, detail) == text


def test_a_choice_of_one_is_no_range() -> None:
    assert format_choice(4) == "from 1 to 4"
    assert format_choice(1) == "1"
