"""--ray: the roles that it makes, and what it refuses."""

import pytest

from allranks.errors import UsageError
from allranks.protocol.jsontext import Json
from allranks.settings import RunSpec
from allranks.settings.document import to_document
from allranks.settings.layers import resolve
from allranks.settings.ray import name_of
from allranks.settings.roles import deal


def spec_of(*command: str, **options: Json) -> RunSpec:
    return resolve({"ray": True, "command": list(command), **options}, {}, {}, config_source="allranks.toml").spec


def test_ray_is_a_role_on_all_nodes_and_the_driver_one_on_the_first() -> None:
    spec = spec_of("X=1", "python", "-m", "verl.trainer.main_ppo", "a=1", nproc=8, ray_start=["--num-cpus 4 --verbose"])
    ray, driver = spec.launch.roles
    assert ray.command[3:] == ("start", "--num-gpus=8", "--num-cpus=4", "--verbose")
    assert (ray.nproc, ray.ends, driver.ends, driver.after, driver.env) == (1, "never", "run", ("ray",), {"X": "1"})
    assert driver.command == ("python", "-m", "verl.trainer.main_ppo", "a=1")
    assert deal(spec.launch.roles, 3, "hosts.txt") == {"ray": [0, 1, 2], "driver": [0]}
    assert [name_of(ray, 0), name_of(ray, 2), name_of(driver, 0)] == ["ray-head", "ray-worker", "driver"]
    assert (driver.hang, spec_of("x", hang_timeout="5m").launch.roles[1].hang) == (False, True)


def test_jobs_need_the_dashboard_which_takes_them() -> None:
    ray, driver = spec_of("ray", "job", "submit", "--", "python", "t.py").launch.roles
    assert driver.command[:5] == ("python", "-m", "ray.scripts.scripts", "job", "submit")
    assert "--include-dashboard=true" in ray.command


def test_a_plain_run_says_nothing_of_ray() -> None:
    assert {"ray", "ray_start"}.isdisjoint(to_document(RunSpec.of(command=("train.py",))))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"command": []}, "--ray needs the command of the driver"),
        ({"command": ["torchrun", "t.py"]}, "torchrun starts ranks, and Ray starts its own workers"),
        ({"role": ["a:1 x"]}, "--ray makes the roles of the run, and --role names others"),
        ({"ray_start": ["--head"]}, "--ray-start: --head is set by --ray itself. Leave it out"),
        ({"ray_start": ["8"]}, "--ray-start: 8 is not an option of ray start"),
        ({"ray": None, "ray_start": ["--num-cpus=1"]}, "--ray-start is of a run with Ray"),
        ({"retries": 2}, "--retries is of a run with one role. --ray has several"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Json], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        spec_of("python", "t.py", **options) if "command" not in options else spec_of(**options)  # type: ignore[arg-type]
    assert says in str(refused.value)
