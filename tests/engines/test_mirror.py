"""The commands that a look at another machine's run gives to a shell there, in a real shell, and their answers."""

import subprocess
from pathlib import Path

from allranks.engines.mirror import LIST_RUNS, READ_KNOWN, SHOW, files_of
from allranks.runs.known_directories import note_runs_directory, paths_of

MARK = "0123456789abcdef"


def answer(commands: str, environ: dict[str, str]) -> dict[str, bytes]:
    script = f'T={MARK}\n{SHOW}\n{commands}\necho "$T done"\n'
    told = subprocess.run(["/bin/sh", "-s"], input=script.encode(), env=environ, capture_output=True, check=True)
    return files_of(told.stdout, MARK.encode())


def test_the_list_of_runs_directories_is_read_where_this_program_keeps_it(tmp_path: Path) -> None:
    runs = tmp_path / "a place" / "runs"
    runs.mkdir(parents=True)
    for environ in ({"HOME": str(tmp_path)}, {"HOME": "/nonexistent", "XDG_STATE_HOME": str(tmp_path / "state")}):
        assert answer(READ_KNOWN, environ) == {}
        note_runs_directory(runs, environ)
        assert paths_of(answer(READ_KNOWN, environ)["known"]) == [str(runs)]


def test_names_are_words_and_never_commands(tmp_path: Path) -> None:
    evil = "$(touch made); `touch made` -rf"
    run = tmp_path / evil / "--help"
    run.mkdir(parents=True)
    (run / "run.json").write_bytes(b'{"run": "x"}\n\n')
    commands = f"{LIST_RUNS}\n( list '{tmp_path}/{evil}' 0 )\n( list /nonexistent/place 1 )"
    files = answer(commands, {"HOME": str(tmp_path)})
    assert files == {"0/place": f"{tmp_path}/{evil}\n".encode(), "0/--help/run.json": b'{"run": "x"}\n\n'}
    assert [path.name for path in tmp_path.rglob("made")] == []


def test_what_stands_beside_the_files_of_an_answer_is_left_out() -> None:
    mark = MARK.encode()
    hostile = b"motd\n%b file a\nx\n%b end\nnoise %b file b\n%b file c\n\x00\xff\n%b end\n%b done\n"
    assert files_of(hostile.replace(b"%b", mark), mark) == {"a": b"x", "c": b"\x00\xff"}
