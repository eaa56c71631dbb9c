"""What a rendered script does with its prelude, tried in bash."""

import subprocess
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND

from allranks.cluster.hostfile import parse_host_argument
from allranks.cluster.nodes import make_cluster
from allranks.plan.plan import make_plan
from allranks.plan.render import RENDERERS, RenderRequest
from allranks.settings import RunSpec


def run(place: Path, prelude: str) -> subprocess.CompletedProcess[str]:
    """The first node's script, with `echo` in the place of the training interpreter."""
    (place / "inner.sh").write_text("false\nls /nosuch\nexport GOOD=1\n")
    spec = RunSpec.of(command=("train.py",), launcher="torchrun", nproc=1, python="/bin/echo", prelude=prelude)
    hosts = make_cluster(parse_host_argument("g1,g2"), source="--hosts", first=None, is_local=lambda host: False)
    files = RENDERERS["torchrun"].render(RenderRequest(spec, make_plan(spec, hosts, {}), str(place), {}))
    name = next(name for name in sorted(files) if name.endswith(".sh"))
    (place / name).write_text(str(files[name]))
    return subprocess.run(["bash", name], cwd=place, capture_output=True, text=True, timeout=BOUND, check=False)


@pytest.mark.parametrize(
    "prelude",
    ["source inner.sh", "f() { false; true; }; f", "[ -d /nosuch ] && echo\nfalse || true", "( false; true )"],
)
def test_what_fails_inside_does_not_end_it(tmp_path: Path, prelude: str) -> None:
    done = run(tmp_path, prelude)
    assert done.returncode == 0, done.stderr
    assert "train.py" in done.stdout


@pytest.mark.parametrize(
    ("prelude", "code", "said"),
    [
        ("source nofile.sh", 1, "No such file"),
        ("module load x", 127, "command not found"),
        ("f() { return 7; }; f", 7, ""),
    ],
)
def test_a_command_that_fails_ends_it(tmp_path: Path, prelude: str, code: int, said: str) -> None:
    done = run(tmp_path, prelude)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert f"a command of the prelude ended with code {code}" in done.stderr
