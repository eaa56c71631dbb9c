"""The memory of nodes on real hosts: a lost host is remembered as itself, and `run --avoid` leaves it to the spares."""

import json
from pathlib import Path

from tests.hosts.bed import Bed
from tests.hosts.launching import Launch, program


def test_a_lost_host_is_remembered_and_avoided(bed4: Bed, tmp_path: Path) -> None:
    """All hosts of the bed have one machine-id: they are distinguished by host name, and that is said."""
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    launch = Launch(bed4, tmp_path)
    launch.start(program("v_steps.py"), "--lease", "4", "--hang-timeout", "0", hosts="h1,h2,h3", env=state)
    launch.until_running(3)
    bed4.host("h2").link_down()
    result = launch.result()
    assert (result["verdict"]["where"]["node"], result["exit"]) == ("h2", 4), result["verdict"]
    bed4.heal()

    def remembered() -> dict[str, dict[str, object]]:
        done = launch.call("nodes", "--json", env=state)
        assert done.returncode == 0, done.stderr
        return {node["name"]: node for node in json.loads(done.stdout)["nodes"]}

    nodes = remembered()
    assert set(nodes) == {"h1", "h2", "h3"}
    assert {name for name, node in nodes.items() if node["suspicion"]} == {"h2"}
    assert nodes["h2"]["failures"] == {result["verdict"]["cause"]: 1}
    assert {node["known_by"] for node in nodes.values()} == {"machine and host name"}
    assert "are distinguished by host name" in launch.call("nodes", env=state).stdout

    words = ["--hosts", "h1,h2,h3", "--spares", "1", "--retries", "1", "--avoid", "--dry-run", "--json", "train.py"]
    plan = json.loads(launch.call("run", *words, env=state).stdout)
    assert [node["name"] for node in plan["nodes"]] == ["h1", "h3"]
    assert [node["name"] for node in plan["spares"]] == ["h2"] and "h2 is a spare" in plan["avoided"][0]

    done = launch.call("check", "--hosts", "h1,h2", "--level", "quick", "--json", env=state)
    assert done.returncode in (0, 3), done.stderr
    assert {name: node["runs"] for name, node in remembered().items()} == {"h1": 2, "h2": 2, "h3": 1}


def test_a_bug_of_the_program_is_no_fault_of_its_host(bed2: Bed, tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    launch = Launch(bed2, tmp_path)
    (launch.work / "bug.py").write_text("import os\nassert os.environ['RANK'] == '0', 'a bug'\n")
    launch.start([str(launch.work / "bug.py")], env=state)
    assert launch.result()["exit"] == 1
    lines = (tmp_path / "state" / "allranks" / "nodes.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["other", "other"]
