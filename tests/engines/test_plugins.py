"""Checks of other packages: found by entry point, shipped to nodes, refused with a sentence where they are none."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND
from tests.interpreters import OLDEST

from allranks.errors import ConfigError
from allranks.gang import agent_archive as bundle
from allranks.gang import plugins
from allranks.gang.plugins import built_in

pytestmark = pytest.mark.processes

SOURCE = '''"""The site's licence file is there."""

from __future__ import annotations

from allranks.findings import Finding
from allranks.preflight.compare import place
from allranks.text import join_names

ID = "{id}"
GROUP = "host"
LEVEL = "quick"


def collect(host):
    return host.exists("/etc/hostname")


def judge(request, facts_by_node):
    absent = [n for n, f in facts_by_node.items() if not f[ID]]
    return [Finding(ID, "fail", join_names(absent) + " has none", "get one", place(absent))] if absent else []
'''


def forget() -> None:
    for cached in (plugins.installed, plugins.all_checks, bundle.node_zip):
        cached.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a module on the path and names it by an entry point, as an installed package would."""
    forget()
    monkeypatch.syspath_prepend(str(tmp_path))

    def do(module: str, text: str) -> None:
        (tmp_path / f"{module}.py").write_text(text)
        point = EntryPoint(module, module, plugins.GROUP)
        monkeypatch.setattr(plugins, "entry_points", lambda group: [point])

    yield do
    forget()


def test_it_joins_the_others_and_ships(install) -> None:
    install("site_licence", SOURCE.format(id="site_licence"))
    assert "site_licence" in plugins.all_checks() and set(built_in()) < set(plugins.all_checks())
    names = zipfile.ZipFile(io.BytesIO(bundle.node_zip(("site_licence", "proxy")))).namelist()
    assert "allranks/preflight/checks/site_licence.py" in names and "allranks/preflight/checks/proxy.py" in names
    assert "allranks/preflight/checks/limits.py" not in names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SOURCE.format(id="limits"), "has the ID of a check of allranks"),
        ("ID = 'x'\nGROUP = 'none'\nLEVEL = 'quick'\n", "GROUP 'none'"),
        ("ID = 'x'\nGROUP = 'host'\nLEVEL = 'quick'\n", "give it judge(request, facts_by_node)"),
        ("import not_there_at_all\n", "not_there_at_all"),
    ],
)
def test_what_is_no_check_is_refused(install, text: str, said: str) -> None:
    install(f"bad_{abs(hash(text))}", text)
    with pytest.raises(ConfigError, match=r"cannot be used|has the ID") as error:
        plugins.all_checks()
    assert said in str(error.value)


@pytest.mark.skipif(OLDEST is None, reason="no Python 3.8 is installed")
def test_every_check_ships_and_collects_under_python_3_8(tmp_path: Path) -> None:
    """From the very zip that nodes get, isolated from this checkout."""
    checks = tuple(name for name, check in built_in().items() if check.collect is not None)
    archive = tmp_path / "node.zip"
    archive.write_bytes(bundle.node_zip(checks))
    program = (
        "import sys, json; sys.path.insert(0, sys.argv[1])\n"
        "from allranks.agent.node_check import collect\n"
        "from allranks.protocol.orders import SetupOrder\n"
        "checks = tuple(sys.argv[2].split(','))\n"
        "found = collect(SetupOrder(checks=checks, workdir='/', command=('true',), uid='u'))\n"
        "print(json.dumps({n: found.get(n, 'absent') for n in sys.argv[2].split(',')}))"
    )
    done = subprocess.run([str(OLDEST), "-I", "-S", "-c", program, str(archive), ",".join(checks)],
                          capture_output=True, text=True, timeout=BOUND)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    bugs = {n: f["error"] for n, f in found.items() if isinstance(f, dict) and "Error:" in str(f.get("error", ""))}
    assert set(found) == set(checks) and bugs == {} and "absent" not in found.values()
