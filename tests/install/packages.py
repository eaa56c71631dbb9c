"""The wheel and the sdist of this checkout, built once, and allranks as it is installed from them."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent  # uv, pipx and build lie here (`make test-install` puts them there)
GENEROUS = 600.0  # seconds: packages are fetched, and the machine may be shared

# Settings of package managers and of the way out; PYTHONPATH, VIRTUAL_ENV and the like would lead back to the checkout.
NETWORK = re.compile(r"(PIP|UV|SSL|REQUESTS|CURL)_|(https?|all|no)_proxy", re.IGNORECASE)
BARE = {name: value for name, value in os.environ.items() if NETWORK.match(name)}
BARE |= {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(Path.home())}

# The page of the first tutorial has the program that README and tutorial start.
_PAGE = (ROOT / "docs/tutorials/local.md").read_text(encoding="utf-8")
TRAIN = re.findall(r"<!-- file: train.py -->\n```python\n(.*?)```", _PAGE, re.DOTALL)[0]
# A program without torch that tells what runs it: its Python, and that of the agent, its parent.
TELL = """import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
print("python %d.%d" % sys.version_info[:2], "under", os.readlink("/proc/%d/exe" % os.getppid()))
"""
FAIL = "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('the second fails')\n"


@dataclass(frozen=True)
class Packages:
    """What `python -m build` makes: the wheel of the checkout, the sdist, and the wheel of that sdist."""

    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


def build(directory: Path) -> Packages:
    """Build all three, both ways at the same time; the checkout stays as it is."""
    make = [sys.executable, "-m", "build", "--installer", "uv", str(ROOT), "--outdir"]
    with ThreadPoolExecutor() as pool:
        both = pool.submit(run, *make, str(directory / "both"))
        alone = pool.submit(run, *make, str(directory / "alone"), "--wheel")
    both.result()
    alone.result()
    (wheel,) = (directory / "alone").iterdir()
    (sdist,) = (directory / "both").glob("*.tar.gz")
    (wheel_of_sdist,) = (directory / "both").glob("*.whl")
    return Packages(wheel, sdist, wheel_of_sdist)


def run(*words: str, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command that must succeed, in an environment that knows nothing of the checkout; return its output."""
    done = call(*words, cwd=cwd, **environment)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def call(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in such an environment."""
    return subprocess.run(words, cwd=cwd, env={**BARE, **environment}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=GENEROUS)  # fmt: skip


def environment_of(interpreter: str, place: Path, wheel: Path) -> Path:
    """Make a virtual environment of an interpreter with the wheel in it; return its `allranks`."""
    uv = str(BIN / "uv")
    run(uv, "venv", "--quiet", "--no-project", "--python", interpreter, str(place))
    run(uv, "pip", "install", "--quiet", "--python", str(place / "bin/python"), str(wheel))
    return place / "bin/allranks"


def agents_of(output: str) -> set[str]:
    """The interpreters of the agents, from what ranks of TELL printed."""
    return set(re.findall(r"under (\S+)", output))
