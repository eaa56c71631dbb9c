"""--sync, the caller's side: which files a working tree has, and that packing them gives the same bytes again."""

import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.gang import working_tree as gang_tree
from allranks.gang.working_tree import LARGE, Archive, list_tree, pack, pack_tree
from allranks.settings import RunSpec

SPEC = RunSpec.of(command=("hostname",))
GIT_ENV = {
    **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def git(place: Path, *words: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *who, "-C", str(place), *words], check=True, capture_output=True, env=GIT_ENV)


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")


def committed(place: Path, *names: str) -> Path:
    """A repository with these files in its one commit."""
    write(place, *names)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        git(place, *words)
    return place


def sparse(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A directory without git."""
    place = (tmp_path / "plain").resolve()
    place.mkdir()
    if any((p / ".git").exists() for p in place.parents):
        pytest.skip("the tests' temporary directory lies in a git repository")
    return place


@pytest.fixture
def repo(plain: Path) -> Path:
    """A repository with one commit."""
    return committed(plain, "train.py", "lib/model.py")


def names(place: Path, spec: RunSpec = SPEC) -> list[str]:
    return list(list_tree(spec, str(place)).names)


def members(archive: Archive) -> dict[str, tarfile.TarInfo]:
    data = archive.read(0, archive.tree.packed)
    assert len(data) == archive.tree.packed
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz", encoding="utf-8", errors="surrogateescape") as tar:
        return {m.name: m for m in tar.getmembers()}


def refused(place: Path, spec: RunSpec = SPEC) -> str:
    with pytest.raises(UsageError) as found:
        pack_tree(spec, str(place))
    return str(found.value)


# -- in a git repository -------------------------------------------------------------------------------


def test_tracked_and_untracked_but_not_ignored(repo: Path) -> None:
    write(repo, ".gitignore", "new.py", "data/big.txt", "lib/skip.me")
    (repo / ".gitignore").write_text("data/\n*.me\n")
    assert names(repo) == [".gitignore", "lib/model.py", "new.py", "train.py"]


def test_an_uncommitted_change_is_what_travels(repo: Path) -> None:
    (repo / "train.py").write_text("changed = True\n")
    archive = pack_tree(SPEC, str(repo))
    with tarfile.open(fileobj=io.BytesIO(archive.read(0, archive.tree.packed)), mode="r:gz") as tar:
        file = tar.extractfile("train.py")
        assert file is not None and file.read() == b"changed = True\n"
    assert archive.tree.bytes == sum((repo / n).stat().st_size for n in names(repo))


def test_what_is_tracked_travels_although_it_is_ignored(repo: Path) -> None:
    write(repo, "kept.log", "other.log")
    git(repo, "add", "kept.log")
    (repo / ".gitignore").write_text("*.log\n")
    assert "kept.log" in names(repo) and "other.log" not in names(repo)


def test_what_git_has_and_the_tree_no_longer(repo: Path) -> None:
    """A tracked directory became a link, then a tracked file was deleted."""
    (repo / "lib").rename(repo / "other")
    (repo / "lib").symlink_to("other")
    assert names(repo) == ["lib", "other/model.py", "train.py"]
    (repo / "train.py").unlink()
    assert names(repo) == ["lib", "other/model.py"]


def test_byte_code_is_left_out_even_if_tracked(repo: Path) -> None:
    write(repo, "lib/__pycache__/model.cpython-313.pyc")
    git(repo, "add", "-f", ".")
    assert names(repo) == ["lib/model.py", "train.py"]


def test_a_conflict_lists_its_file_once(repo: Path) -> None:
    git(repo, "checkout", "-qb", "side")
    (repo / "train.py").write_text("side\n")
    git(repo, "commit", "-qam", "side")
    git(repo, "checkout", "-q", "-")
    (repo / "train.py").write_text("main\n")
    git(repo, "commit", "-qam", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "merge", "side")
    assert names(repo) == ["lib/model.py", "train.py"]


def test_submodules_and_repositories_inside(repo: Path, tmp_path: Path) -> None:
    git(repo, "submodule", "add", "-q", str(committed(tmp_path / "source", "sub.py")), "vendored/sub")
    write(repo, "vendored/sub/uncommitted.py", "vendored/sub/ignored.me")
    (repo / "vendored/sub/.gitignore").write_text("*.me\n")
    committed(repo / "nested", "inner.py", "deep/er.py")
    found = names(repo)
    assert {"vendored/sub/sub.py", "vendored/sub/uncommitted.py", "nested/inner.py", "nested/deep/er.py"} <= set(found)
    assert "vendored/sub/ignored.me" not in found
    assert not any(".git" in name.split("/")[:-1] for name in found), found


def test_a_submodule_that_was_not_checked_out(repo: Path, tmp_path: Path) -> None:
    git(repo, "submodule", "add", "-q", str(committed(tmp_path / "source", "sub.py")), "sub")
    git(repo, "submodule", "--quiet", "deinit", "--force", "sub")
    assert names(repo) == [".gitmodules", "lib/model.py", "train.py"]


ODD = [b"line\nbreak.py", b"with space.py", b"-leading.py", b"caf\xe9.bin", "caf\u00e9.py".encode(), b"tab\t\"q\".py"]


@pytest.mark.parametrize("place_name", ["repo", "plain"])
def test_names_of_any_bytes(place_name: str, request: pytest.FixtureRequest) -> None:
    place: Path = request.getfixturevalue(place_name)
    for name in ODD:
        Path(os.fsdecode(os.path.join(os.fsencode(place), name))).write_bytes(name)
    archive = pack_tree(SPEC, str(place))
    found = {os.fsencode(n) for n in names(place)}
    assert set(ODD) <= found
    assert set(ODD) <= {name.encode("utf-8", "surrogateescape") for name in members(archive)}


def test_the_executable_bit_and_nothing_else(repo: Path) -> None:
    (repo / "train.py").chmod(0o775)
    (repo / "lib/model.py").chmod(0o666)
    found = members(pack_tree(SPEC, str(repo)))
    assert (found["train.py"].mode, found["lib/model.py"].mode) == (0o700, 0o600)
    told = {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in found.values()}
    assert told == {(0, 0, "", "", 0)}


def test_another_repository_in_the_environment_does_not_matter(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a git hook."""
    other = committed(tmp_path / "other", "another.py")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    tree = list_tree(SPEC, str(repo / "lib")).tree
    assert (tree.root, tree.below, tree.files) == (str(repo), "lib", 2)


def test_git_that_is_not_installed(repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not installed" in refused(repo)


def test_git_that_refuses_says_why(plain: Path) -> None:
    (plain / ".git").write_text("gitdir: /nowhere\n")
    said = refused(plain)
    assert "git does not list" in said and "/nowhere" in said


# -- without git ---------------------------------------------------------------------------------------


def test_without_git_what_no_program_reads_is_left_out(plain: Path) -> None:
    write(plain, "train.py", "lib/model.py", "lib/__pycache__/model.pyc", ".venv/bin/activate", "node_modules/x/y.js",
          "lib/node_modules/z.js", "myenv/pyvenv.cfg", "myenv/lib/torch.py", "conf/.env")  # fmt: skip
    assert names(plain) == ["conf/.env", "lib/model.py", "train.py"]


def test_without_git_large_checkpoints_are_left_out_and_named(plain: Path) -> None:
    write(plain, "train.py", "small.pt")
    sparse(plain / "ckpt/step-1.pt", LARGE + 1)
    sparse(plain / "ckpt/model.safetensors", LARGE + 1)
    sparse(plain / "table.csv", LARGE + 1)
    sparse(plain / "limit.pt", LARGE)
    listing = list_tree(SPEC, str(plain))
    assert listing.names == ("limit.pt", "small.pt", "table.csv", "train.py")
    assert listing.tree.left_out == ("ckpt/model.safetensors (16 MB)", "ckpt/step-1.pt (16 MB)")
    assert listing.tree.limit == LARGE


def test_what_is_named_can_be_printed(plain: Path) -> None:
    sparse(plain / os.fsdecode(b"caf\xe9\n\xc3\xa9.pt"), LARGE + 1)
    (name,) = list_tree(SPEC, str(plain)).tree.left_out
    assert name == "caf\\udce9\\n\u00e9.pt (16 MB)"
    name.encode()


def test_in_git_a_large_checkpoint_is_as_any_file(repo: Path) -> None:
    sparse(repo / "step-1.pt", LARGE + 1)
    listing = list_tree(SPEC, str(repo))
    assert "step-1.pt" in listing.names and listing.tree.left_out == ()


def test_sockets_and_pipes_are_not_files(plain: Path) -> None:
    write(plain, "train.py")
    os.mkfifo(plain / "pipe")
    archive = pack_tree(SPEC, str(plain))
    assert (list(members(archive)), archive.tree.files) == (["train.py"], 1)


# -- run directories -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place_name", ["repo", "plain"])
def test_earlier_runs_are_left_out(place_name: str, request: pytest.FixtureRequest) -> None:
    place: Path = request.getfixturevalue(place_name)
    write(place, "train.py", "runs/run-1/run.json", "runs/run-1/events.jsonl", "runs/run-1/logs/rank_000.log",
          "runs/check-20261122-101500/evidence/preflight.json", "runs/check-20261122-101500/report.html",
          "runs/notes/mine.md", "runs/check-list/evidence/preflight.json",
          "runs/own.txt")  # fmt: skip
    found = names(place)
    assert not any(name.startswith(("runs/run-1", "runs/check-2")) for name in found)
    assert "runs/check-list/evidence/preflight.json" in found, "a name of the user's own"
    assert {"runs/notes/mine.md", "runs/own.txt", "train.py"} <= set(found)


def test_runs_in_another_place_and_from_below(repo: Path) -> None:
    write(repo, "lib/past/run-1/run.json", "lib/past/run-1/events.jsonl", "lib/past.txt")
    found = names(repo / "lib", RunSpec.of(command=("hostname",), runs_dir="past"))
    assert found == ["lib/model.py", "lib/past.txt", "train.py"]


def test_a_script_that_is_not_here_is_not_looked_for_on_the_nodes(plain: Path) -> None:
    write(plain, "train.py", "lib/model.py")
    with pytest.raises(UsageError, match=f"--sync: {plain} has no trian.py to ship"):
        list_tree(RunSpec.of(command=("trian.py",)), str(plain))
    with pytest.raises(UsageError, match=f"{plain}/lib has no train.py to ship"):
        list_tree(RunSpec.of(command=("train.py",), workdir="lib"), str(plain))
    outside = rf"--sync ships {plain}/lib, and \.\./train.py is outside of it.*\nhint: cd {plain}$"
    with pytest.raises(UsageError, match=outside):
        list_tree(RunSpec.of(command=("../train.py",)), str(plain / "lib"))
    made_by_prelude = RunSpec.of(command=("made.py",), prelude="./make > made.py")
    assert names(plain, made_by_prelude) == ["lib/model.py", "train.py"]


def test_a_script_that_git_ignores_is_not_shipped(repo: Path) -> None:
    write(repo, "own.py")
    (repo / ".gitignore").write_text("own.py\n")
    with pytest.raises(UsageError, match=f"git ignores {repo}/own.py.*\nhint: git add -f {repo}/own.py"):
        list_tree(RunSpec.of(command=("own.py",)), str(repo))


# -- the position --------------------------------------------------------------------------------------


def test_the_whole_repository_from_a_directory_below(repo: Path) -> None:
    listing = list_tree(SPEC, str(repo / "lib"))
    assert (listing.tree.root, listing.tree.below) == (str(repo), "lib")
    assert listing.names == ("lib/model.py", "train.py")
    assert listing.tree.workdir("/tmp/n") == "/tmp/n/tree/lib"
    assert list_tree(SPEC, str(repo)).tree.workdir("/tmp/n") == "/tmp/n/tree"


def test_a_position_that_holds_no_file_is_there_all_the_same(repo: Path) -> None:
    (repo / "empty/er").mkdir(parents=True)
    archive = pack_tree(SPEC, str(repo / "empty/er"))
    assert members(archive)["empty/er"].isdir()
    assert archive.tree.files == 2


def test_the_position_through_a_link(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "short").symlink_to(repo / "lib")
    tree = list_tree(SPEC, str(tmp_path / "short")).tree
    assert (tree.root, tree.below) == (str(repo), "lib")


@pytest.mark.parametrize(
    ("position", "workdir", "below"),
    [("", "lib", "lib"), ("", "./lib/../lib", "lib"), ("", "{root}/lib", "lib"), ("lib", "..", "")],
)
def test_workdir_inside_the_tree(repo: Path, position: str, workdir: str, below: str) -> None:
    spec = RunSpec.of(command=("hostname",), workdir=workdir.format(root=repo))
    assert list_tree(spec, str(repo / position)).tree.below == below


OUTSIDE = "--workdir {workdir} is outside of the tree that --sync ships ({repo})"
NO_DIRECTORY = "--workdir {workdir}: {repo}/{workdir} is not a directory"


@pytest.mark.parametrize(
    ("workdir", "says"),
    [("..", OUTSIDE), ("/", OUTSIDE), ("out", OUTSIDE), ("lbi", NO_DIRECTORY), ("train.py", NO_DIRECTORY)],
)
def test_workdir_that_the_tree_does_not_have(repo: Path, workdir: str, says: str) -> None:
    (repo / "out").symlink_to("/tmp")
    (repo / ".gitignore").write_text("out\n")
    said = refused(repo, RunSpec.of(command=("train.py",), workdir=workdir))
    assert says.format(workdir=workdir, repo=repo) in said


@pytest.mark.parametrize("words", [("{root}/train.py",), ("python", "-u", "{root}/train.py"), ("{link}/train.py",)])
def test_an_absolute_script_in_the_tree(repo: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "short").symlink_to(repo)
    command = tuple(w.format(root=repo, link=tmp_path / "short") for w in words)
    assert f"the command names {command[-1]}" in refused(repo, RunSpec.of(command=command))


@pytest.mark.parametrize("words", [("/usr/bin/env", "x"), ("python", "-m", "lib.model"), ("train.py", "/abs")])
def test_other_commands(repo: Path, words: tuple[str, ...]) -> None:
    assert list_tree(RunSpec.of(command=words), str(repo)).tree.files == 2


# -- links ---------------------------------------------------------------------------------------------


def test_links_travel_as_links_wherever_they_lead(repo: Path) -> None:
    links = {"a": "train.py", "lib/up": "../train.py", "d": "lib", "lib/root": "..", "gone": "lib/no", "loop": "loop",
             "data": "/shared/data", "out": "../../x"}  # fmt: skip
    for name, target in links.items():
        (repo / name).symlink_to(target)
    found = members(pack_tree(SPEC, str(repo)))
    assert {n: m.linkname for n, m in found.items() if m.issym()} == links
    assert not any(n.startswith("d/") for n in found)


# -- too much ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place_name", ["repo", "plain"])
def test_too_many_files(place_name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    place: Path = request.getfixturevalue(place_name)
    monkeypatch.setattr(gang_tree, "MOST_FILES", 10)
    write(place, *(f"data/{number}" for number in range(11)))
    said = refused(place)
    assert f"{place} has more than 10 files" in said and ".gitignore" in said


def test_too_large_names_the_largest(repo: Path) -> None:
    sparse(repo / "data/a.npy", 200 << 20)
    sparse(repo / "data/b.npy", 100 << 20)
    said = refused(repo)
    assert "in 4 files, more than the 256" in said and ".gitignore" in said
    assert said.index("data/a.npy") < said.index("data/b.npy") < said.index("train.py")


def test_just_small_enough(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum((repo / n).stat().st_size for n in names(repo))
    monkeypatch.setattr(gang_tree, "MOST_BYTES", size)
    assert list_tree(SPEC, str(repo)).tree.bytes == size
    monkeypatch.setattr(gang_tree, "MOST_BYTES", size - 1)
    assert "more than the" in refused(repo)


# -- packing -------------------------------------------------------------------------------------------


def test_the_same_files_give_the_same_archive(repo: Path, tmp_path: Path) -> None:
    """Elsewhere, made in another order, at other times."""
    archive = pack_tree(SPEC, str(repo))
    first = archive.tree
    assert archive.read(3, 5) == bytes(5), "neither a name nor a time in gzip's header"
    other = committed(tmp_path / "elsewhere", "lib/model.py", "train.py")
    for number, path in enumerate((other / "train.py", other / "lib/model.py")):
        os.utime(path, (10 + number, 20 + number))
        path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o044)
    second = pack_tree(SPEC, str(other)).tree
    assert (first.sha256, first.packed, first.files) == (second.sha256, second.packed, second.files)
    (other / "train.py").write_text("another\n")
    assert pack_tree(SPEC, str(other)).tree.sha256 != first.sha256


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read(repo: Path) -> None:
    (repo / "train.py").chmod(0)
    assert f"{repo}/train.py: Permission denied" in refused(repo)


def test_a_file_that_goes_while_it_is_packed(repo: Path) -> None:
    listing = list_tree(SPEC, str(repo))
    (repo / "train.py").unlink()
    with pytest.raises(UsageError, match=r"cannot pack .*/train\.py \(No such file"):
        pack(listing)


def test_a_tree_without_files(plain: Path) -> None:
    archive = pack_tree(SPEC, str(plain))
    assert (archive.tree.files, archive.tree.bytes, members(archive)) == (0, 0, {})
    assert archive.tree.packed > 0
