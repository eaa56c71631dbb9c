"""Host lists: what expands to what, what is refused, and that fold is the inverse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.cluster.hostlist import MAX_HOSTS, expand, fold
from allranks.errors import UsageError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[01-04,07]", ["node01", "node02", "node03", "node04", "node07"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[098-101]x", ["n098x", "n099x", "n100x", "n101x"]),
        ("n[0-1].rack[7].example.com", ["n0.rack7.example.com", "n1.rack7.example.com"]),
        ("n[1,3,5-6],login,m[2]", ["n1", "n3", "n5", "n6", "login", "m2"]),
        ("h1, h2 ,h3,", ["h1", "h2", "h3"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
        ("[1-2]n", ["1n", "2n"]),
        ("n[0-8/4]", ["n0", "n4", "n8"]),
        ("n[08-12/2,3]x", ["n08x", "n10x", "n12x", "n3x"]),
        ("n[1-2/5]", ["n1"]),
        ("n[1-5]!n3", ["n1", "n2", "n4", "n5"]),
        ("m,n[01-04]!n[01,04]!n02", ["m", "n03"]),
        ("::1", ["::1"]),
        ("[::1]", ["[::1]"]),
        ("[fe80::1%eth0],n[1-2]", ["[fe80::1%eth0]", "n1", "n2"]),
        ("2001:db8::1,2001:db8::2", ["2001:db8::1", "2001:db8::2"]),
        ("me@[2001:db8::1]:2222", ["me@[2001:db8::1]:2222"]),
    ],
)
def test_expands(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "missing"),
        ("a,,b", "missing"),
        ("n[1-2", "not closed"),
        ("n1-2]", "not closed"),
        ("n[[1-2]]", "inside brackets"),
        ("n[]", "not a number"),
        ("n[1-]", "not a number"),
        ("n[a-c]", "not a number"),
        ("n[1-2-3]", "not a number"),
        ("n[٣-٤]", "not a number"),
        ("n[4-1]", "runs backwards"),
        ("n[1-4/0]", "a step of 0"),
        ("n[1-4/-1]", "not a number"),
        ("n[0100-660]", "same number of digits"),
        ("n[1-4]!m1", "'m1' is excluded"),
        ("n[1-4]!n[1-4]", "every host is excluded"),
        ("n1!m[1-4000]!m[4001-8000]", "more than 4096 hosts"),
        ("n1,!n2", "before and behind"),
        ("n[1-4]!", "before and behind"),
        ("n[0-9999999999]", "more than 4096"),
        ("n[1-4097]", "more than 4096"),
        ("n[" + "1" * 5000 + "]", "digits"),
        ("n" * 600, "characters"),
        ("n[1-4096],m", "more than 4096"),
        ("n" + "[1]" * 5000, "characters"),
    ],
)
def test_refuses(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part.replace("[", r"\[")):
        expand(text)


def test_the_largest_list_expands() -> None:
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["node01", "node02", "node03", "node07"], "node[01-03,07]"),
        (["n1.c2.org", "n2.c2.org"], "n[1-2].c2.org"),
        (["n9", "n10"], "n[9-10]"),
        (["n09", "n10"], "n[09-10]"),
        (["n1", "n01"], "n[1,01]"),
        (["n2", "n1"], "n[2,1]"),
        (["a", "b1", "b2", "::1"], "a,b[1-2],::1"),
    ],
)
def test_folds(names: list[str], text: str) -> None:
    assert fold(names) == text


_PIECES = st.sampled_from(["a", "b-", ".x", "0", "1", "9", "09", "10", "99", "100", "_"])
_NAMES = st.lists(_PIECES, min_size=1, max_size=5).map("".join)


@given(st.lists(_NAMES | st.sampled_from(["::1", "fe80::1%eth0"]), min_size=1, max_size=60))
def test_expand_is_the_inverse_of_fold(names: list[str]) -> None:
    assert expand(fold(names)) == names


_TEXT = st.text(alphabet="ab019-/!,[]:%@. \t\n\x00é", max_size=40) | st.text(max_size=40)


@given(_TEXT)
def test_any_text_expands_or_is_refused(text: str) -> None:
    try:
        names = expand(text)
    except UsageError:
        return
    assert 1 <= len(names) <= MAX_HOSTS
    assert all(names)
