"""`--hosts @group`: ClusterShell itself resolves it, from the user's own configuration only."""

import sys
from pathlib import Path

import pytest

from allranks.engines.reachable_nodes import expand_groups
from allranks.errors import UsageError

pytest.importorskip("ClusterShell", reason="an extra")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A configuration with the groups gpu, none and rack:r1."""
    directory = tmp_path / "clustershell"
    groups = directory / "groups.d"
    groups.mkdir(parents=True)
    (directory / "groups.conf").write_text("[Main]\ndefault: local\nautodir: $CFGDIR/groups.d\n")
    (groups / "site.yaml").write_text("local:\n  gpu: 'n[01-04]'\n  none: ''\nrack:\n  r1: 'h[8-10]'\n")
    return {"XDG_CONFIG_HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("@gpu", "n01,n02,n03,n04"),
        ("head,@rack:r1", "head,h8,h9,h10"),
        ("@gpu!n[02-03],me@h1", "n01,n04,me@h1"),
    ],
)
def test_a_group_becomes_its_hosts(environ: dict[str, str], hosts: str, names: str) -> None:
    assert expand_groups(hosts, environ) == names


@pytest.mark.parametrize(
    ("hosts", "part"),
    [
        ("@nosource:r1", "does not know @nosource:r1"),
        ("@nosuch", "has no host"),
        ("@none", "has no host"),
        ("@*", "is not a node group"),
        ("@gpu!h1", "'h1' is excluded"),
        ("@@gpu", "is not a node group"),
    ],
)
def test_a_group_that_does_not_resolve(environ: dict[str, str], hosts: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand_groups(hosts, environ)
    assert part in str(caught.value)


def test_only_the_configuration_of_the_user_is_read(tmp_path: Path) -> None:
    """Not the samples that the package installs below the interpreter's prefix."""
    with pytest.raises(UsageError, match=r"groups\.conf does not exist"):
        expand_groups("@compute", {"XDG_CONFIG_HOME": str(tmp_path)})


def test_without_the_package_the_message_names_it(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ClusterShell.NodeSet", None)
    with pytest.raises(UsageError, match="pip install ClusterShell"):
        expand_groups("@gpu", environ)


def test_a_user_before_a_host_is_no_group() -> None:
    assert expand_groups("me@h1, you@n[1-2]", {}) == "me@h1, you@n[1-2]"
