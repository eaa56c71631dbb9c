"""`make test-install`: wheel and sdist hold what they must, three installers take them, allranks runs from there."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.install.packages import BIN, FAIL, ROOT, TELL, TRAIN, Packages, call, run

import allranks
from allranks.engines import zipapp

INFO = f"allranks-{allranks.__version__}.dist-info"
TOP = f"allranks-{allranks.__version__}"


def sources() -> set[str]:
    """The files of the package in the checkout, tracked or about to be."""
    words = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "src/allranks"]
    names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in names if (ROOT / name).exists()}


def test_the_wheel_holds_the_package_and_nothing_else(packages: Packages) -> None:
    with zipfile.ZipFile(packages.wheel) as wheel:
        names = set(wheel.namelist())
    code = {name.removeprefix("src/") for name in sources()}
    assert {"allranks/py.typed", "allranks/report/templates/run.html"} < code
    info = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert names == code | {f"{INFO}/{name}" for name in info}


def test_the_sdist_holds_what_the_wheel_is_built_from(packages: Packages) -> None:
    with tarfile.open(packages.sdist) as sdist:
        names = set(sdist.getnames())
    beside = {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert names == {f"{TOP}/{name}" for name in sources() | beside}


def test_the_sdist_builds_the_same_wheel(packages: Packages) -> None:
    assert packages.wheel_of_sdist.read_bytes() == packages.wheel.read_bytes()


def test_the_version_stands_in_one_place(packages: Packages) -> None:
    quoted = [name for name in sources() if f'"{allranks.__version__}"' in (ROOT / name).read_text(encoding="utf-8")]
    assert quoted == ["src/allranks/__init__.py"]
    assert allranks.__version__ not in (ROOT / "pyproject.toml").read_text()
    assert packages.wheel.name == f"allranks-{allranks.__version__}-py3-none-any.whl"


def by_pip(packages: Packages, place: Path) -> Path:
    run(sys.executable, "-m", "venv", str(place))
    run(str(place / "bin/pip"), "install", "--quiet", str(packages.wheel))
    return place / "bin/allranks"


def by_uv(packages: Packages, place: Path) -> Path:
    directories = {"UV_TOOL_DIR": str(place / "tools"), "UV_TOOL_BIN_DIR": str(place / "bin")}
    run(str(BIN / "uv"), "tool", "install", "--python", sys.executable, str(packages.wheel), **directories)
    return place / "bin/allranks"


def by_pipx(packages: Packages, place: Path) -> Path:
    """Of the sdist."""
    directories = {"PIPX_HOME": str(place / "home"), "PIPX_BIN_DIR": str(place / "bin")}
    run(str(BIN / "pipx"), "install", "--python", sys.executable, str(packages.sdist), **directories)
    return place / "bin/allranks"


@pytest.mark.parametrize("install", [by_pip, by_uv, by_pipx])
def test_an_installer_puts_it_into_an_empty_environment(install, packages: Packages, tmp_path: Path) -> None:
    program = str(install(packages, tmp_path / "environment"))
    work = tmp_path / "work"
    work.mkdir()
    assert run(program, "--version", cwd=work) == f"allranks {allranks.__version__}\n"

    (work / "train.py").write_text(TELL)
    output = run(program, "run", "--local", "2", "train.py", cwd=work)
    assert "rank 0 of 2" in output and "rank 1 of 2" in output

    (work / "train.py").write_text(FAIL)
    failed = call(program, "run", "--local", "2", "train.py", cwd=work)
    assert failed.returncode == 1, failed.stderr
    assert "rank 1 on local1 raised ValueError: the second fails" in failed.stdout
    page = re.findall(r"^page (\S+)$", failed.stdout, re.MULTILINE)[0]  # of templates that came along
    assert "the second fails" in (work / page).read_text()
    assert str(ROOT) not in failed.stdout + failed.stderr
    assert sorted(path.name for path in work.iterdir()) == ["runs", "train.py"]


def test_the_readme_s_program_trains_with_torch_of_another_environment(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "train.py").write_text(TRAIN)
    words = ["--local", "2", "--nproc", "1", "--python", sys.executable, "train.py"]
    output = run(str(installed), "run", *words, cwd=tmp_path)
    assert "all 2 ranks initialised" in output and "step 100 loss 0.0" in output


def test_one_file_runs_from_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    """Made by the installed allranks, run by a Python without site-packages."""
    maker = installed.with_name("python")
    work = tmp_path / "work"
    work.mkdir()
    assert "wrote allranks.pyz" in run(str(maker), "-m", "allranks.engines.zipapp", cwd=work)
    bare = (sys.executable, "-I", "-S", "allranks.pyz")
    assert zipapp.COMMAND in run(*bare, "--version", cwd=work)
    (work / "train.py").write_text(TELL)
    assert "rank 1 of 2" in run(*bare, "run", "--local", "2", "train.py", cwd=work)
    assert sorted(path.name for path in work.iterdir()) == ["allranks.pyz", "runs", "train.py"]
