"""Answers of a shell on another machine."""

from allranks.engines.remote_shell import files_of


def test_what_stands_beside_the_files_of_an_answer_is_left_out() -> None:
    mark = b"0123456789abcdef"
    hostile = b"motd\n%b file a\nx\n%b end\nnoise %b file b\n%b file c\n\x00\xff\n%b end\n%b done\n"
    assert files_of(hostile.replace(b"%b", mark), mark) == {"a": b"x", "c": b"\x00\xff"}
