"""Relative paths of settings are made absolute by one rule, at one place."""

import pytest

from allranks.settings import RunSpec
from allranks.settings.paths import against, anchored
from allranks.settings.table import SETTINGS

ON_NODES = ("workdir", "output_dir", "node_dir", "agent_python", "data_paths")
# `python` is looked up on each node, as a shell in the ranks' directory would; the others are files of this machine.
ELSEWHERE = ("python", "hosts", "secret_file", "runs_dir", "metrics_file", "pod", "roles_file")


def test_every_path_of_the_table_has_its_rule() -> None:
    paths = {row.name for row in SETTINGS.values() if row.parser.is_path}
    assert paths == {*ON_NODES, *ELSEWHERE}


@pytest.mark.parametrize("name", [name for name in ON_NODES if name != "data_paths"])
@pytest.mark.parametrize("sync", [False, True])
def test_a_relative_path_is_against_the_place_of_the_call(name: str, sync: bool) -> None:
    """Under --sync too: the copy of the tree on a node ends with the run."""
    spec = anchored(RunSpec.of(**{name: "./a/b", "sync": sync}), "/home/u/p", "/home/u")
    assert spec.value(name) == "/home/u/p/a/b"
    assert anchored(spec, "/elsewhere", "/root").value(name) == "/home/u/p/a/b"


def test_the_working_directory_of_the_nodes_is_the_base_of_the_others() -> None:
    spec = anchored(RunSpec.of(workdir="sub", output_dir="ck", data_paths=("d", "/x")), "/p", "/home/u")
    assert (spec.places.output_dir, spec.preflight.data_paths) == ("/p/sub/ck", ("/p/sub/d", "/x"))


def test_data_of_a_shipped_tree_is_looked_at_in_the_copy() -> None:
    spec = anchored(RunSpec.of(sync=True, data_paths=("d",)), "/p", "/home/u")
    assert spec.preflight.data_paths == ("d",)
    assert against("/tmp/node/tree", "d") == "/tmp/node/tree/d"


def test_a_name_on_path_and_another_users_home_stay() -> None:
    assert anchored(RunSpec.of(agent_python="python3.11"), "/p", "/h").launch.agent_python == "python3.11"
    assert against("/p", "~other/d", "/h") == "~other/d"
    assert against("/p", "~/d", "/h") == "/h/d"
