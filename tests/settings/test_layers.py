"""Precedence, remarks, and messages that name the source and what to set."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaign import examples

from allranks.errors import ConfigError, UsageError
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved, resolve
from allranks.settings.table import SETTINGS, VARIABLES

Layer = dict[str, Any] | None


def run(options: Layer = None, environ: Layer = None, config: Layer = None, **more: Any) -> Resolved:
    return resolve(options or {}, environ or {}, config or {}, config_source="allranks.toml", **more)


FIELDS = sorted(name for name, _ in RunSpec().values() if name != "pg_timeout_forced")


def test_every_field_has_a_row() -> None:
    assert {*SETTINGS, "forward", "roles"} == set(FIELDS)


def test_option_over_environment_over_file() -> None:
    layers: list[Any] = [{"nodes": 4}, {"NNODES": "8"}, {"nodes": 16}]
    assert run(*layers).spec.target.nodes == 4
    assert run({}, *layers[1:]).spec.target.nodes == 8
    assert run({}, {}, layers[2]).spec.target.nodes == 16


def test_none_empty_lists_and_empty_variables_are_not_given() -> None:
    resolved = run(
        {"nodes": None, "command": [], "ssh_options": (), "env": None},
        {"NNODES": "", "NODE_RANK": "", "WORLD_SIZE": " "},
        {"command": ["a.py"]},
    )
    assert resolved == Resolved(RunSpec.of(command=("a.py",)))


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("MASTER_ADDR", "10.0.0.1", "master_addr", "10.0.0.1"),
        ("MASTER_PORT", "29500", "master_port", 29500),
        ("NNODES", "8", "nodes", 8),
        ("NPROC_PER_NODE", "4", "nproc", 4),
        ("NPROC_PER_NODE", "auto", "nproc", None),
        ("NPROC_PER_NODE", "gpu", "nproc", None),
        ("MAX_RETRIES", "3", "retries", 3),
        ("NCCL_TIMEOUT", "1800", "pg_timeout", 1800),
        ("COLOSSALAI_DIST_TIMEOUT", "30m", "pg_timeout", 1800),
        ("COLOSSALAI_MASTER_READY_TIMEOUT", "60", "init_timeout", 60),
        ("DEBUG_DISTRIBUTED", "1", "debug", True),
        ("DEBUG_DISTRIBUTED", "True", "debug", True),
        ("DEBUG_DISTRIBUTED", "0", "debug", False),
        ("ALLRANKS_RUNS_DIR", "/data/runs", "runs_dir", "/data/runs"),
        ("ALLRANKS_CLUSTER", "empty", "cluster", "empty"),
    ],
)
def test_variables_people_have(name: str, value: str, field: str, expected: object) -> None:
    resolved = mine({}, {name: value})
    assert resolved.spec.value(field) == expected
    assert resolved.notes == ()


def test_what_is_taken_from_the_environment_is_said_with_its_value() -> None:
    """Of the options that the command has, and not where an option overrides it."""
    environ = {"MAX_RETRIES": "3", "NNODES": "4", "MASTER_ADDR": "h1", "ALLRANKS_RUNS_DIR": "/data/runs"}
    resolved = run({"retries": None, "nodes": 2, "runs_dir": None}, environ)
    assert resolved.taken == ("retries 3 (from MAX_RETRIES)",)


def test_all_known_variables_are_tried_above() -> None:
    marks = test_variables_people_have.pytestmark  # type: ignore[attr-defined]
    untried = set(VARIABLES) - {case[0] for case in marks[0].args[1]}
    assert not untried, f"add a case above for each of {untried}: its text, and the value that the setting gets"


def test_auto_as_an_option_overrides_a_number() -> None:
    assert run({"nproc": "auto"}, {"NPROC_PER_NODE": "8"}).spec.launch.nproc is None


def test_of_two_timeouts_that_differ_the_first_holds() -> None:
    resolved = run({}, {"NCCL_TIMEOUT": "1800", "COLOSSALAI_DIST_TIMEOUT": "600"})
    assert resolved.spec.limits.pg_timeout == 600


@pytest.mark.parametrize(
    ("layers", "forced"),
    [
        (({"pg_timeout": "5m"}, {"NCCL_TIMEOUT": "60"}), True),
        (({}, {"NCCL_TIMEOUT": "60"}), False),
        (({}, {}, {"pg-timeout": "5m"}), False),
        (({},), False),
    ],
)
def test_only_an_option_forces_the_group_timeout(layers: tuple[Any, ...], forced: bool) -> None:
    assert run(*layers).spec.limits.pg_timeout_forced is forced


def test_node_rank_is_ignored_with_a_note_and_world_size_is_kept() -> None:
    resolved = run({}, {"NODE_RANK": "3", "WORLD_SIZE": "16", "RANK": "2"})
    assert resolved.spec == RunSpec()
    assert resolved.expected_world_size == 16
    assert resolved.notes == ("NODE_RANK=3 is ignored: node ranks follow the order of the host list",)


@pytest.mark.parametrize("text", ["0", "-1", "eight", "1e3", "²", "9" * 30])
def test_a_world_size_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^WORLD_SIZE: found"):
        run({}, {"WORLD_SIZE": text})


def test_nonsense_is_refused_where_nothing_overrides_it() -> None:
    assert run({"nodes": 2}, {"NNODES": "four"}, {"nodes": []}).spec.target.nodes == 2
    with pytest.raises(ConfigError, match=r"^NNODES: found 'four', set a whole number"):
        run({}, {"NNODES": "four"})


def test_file_keys_take_both_spellings_but_not_twice() -> None:
    assert run({}, {}, {"init-timeout": 5}).spec.limits.init_timeout == 5
    assert run({}, {}, {"init_timeout": 5}).spec.limits.init_timeout == 5
    with pytest.raises(ConfigError, match="init_timeout is set twice"):
        run({}, {}, {"init-timeout": 5, "init_timeout": 5})


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("nprocs", 8, "'nprocs' is not a setting. Did you mean nproc?"),
        ("inittimeout", 8, "Did you mean init-timeout?"),
        ("zzz", 8, "allranks init"),
        ("pg_timeout_forced", True, "not a setting"),
        ("dry-run", True, "Give --dry-run on the command line"),
        ("nproc", "eight", "nproc: found 'eight', set a whole number from 1 to 1024 or \"auto\""),
        ("nproc", 0, "set a whole number"),
        ("nproc", True, "found True, set a whole number"),
        ("retries", 10**400, "more than 20 digits"),
        ("master-port", 65536, "set a whole number from 0 to 65535"),
        ("master-addr", "-h", "set a host name or an address"),
        ("master-addr", "a b", "set a host name or an address"),
        ("master-addr", "two..dots", "set a host name whose parts have 1 to 63 characters, or an address"),
        ("master-addr", "x" * 64 + ".example", "set a host name whose parts have 1 to 63 characters, or an address"),
        ("master-addr", 5, "set a host name or an address"),
        ("lease", "1s", "at least 2s"),
        ("lease", float("nan"), "set a duration"),
        ("grace", -1, "set a duration"),
        ("connect-timeout", 0, "more than 0s"),
        ("name", "a b", "at most 40"),
        ("name", "-a", "a letter or digit first"),
        ("name", "a" * 41, "at most 40"),
        ("network", "10.0.0.5", "10.0.0.0/16"),
        ("network", "10.0.0.0/33", "10.0.0.0/16"),
        ("network", [], "10.0.0.0/16"),
        ("launcher", "mpirun", "one of direct, torchrun, accelerate, deepspeed, colossalai, command"),
        ("python", "-c", "not starting with '-'"),
        ("python", "", "interpreter"),
        ("workdir", "a\0b", "without control characters"),
        ("prelude", " ", "shell commands"),
        ("wrap", ["a"], "a command such as"),
        ("hosts", [5], "hostfile"),
        ("hosts", "-h", "not starting with '-'"),
        ("ssh-options", "Port=22", "options of ssh_config"),
        ("ssh-options", ["-oPort=22"], "options of ssh_config"),
        ("ssh-options", ["Port=22\nProxyCommand=x"], "options of ssh_config"),
        ("command", "train.py", "list of words"),
        ("command", ["a\0b"], "list of words"),
        ("step-pattern", "(", "regular expression"),
        ("debug", 1, "true or false"),
        ("fold", "maybe", "true or false"),
    ],
)
def test_a_wrong_file_is_refused_with_its_key(key: str, value: object, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run({}, {}, {key: value})
    message = str(caught.value)
    assert message.startswith("allranks.toml: ")
    assert key in message
    assert part in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hosts", ["n1", "n[2-3]"], "n1,n[2-3]"),
        ("network", "10.1.2.3/16, fd00::/8", "10.1.0.0/16,fd00::/8"),
        ("network", ["10.0.0.0/8"], "10.0.0.0/8"),
        ("prelude", "module load x\nconda activate y", "module load x\nconda activate y"),
        ("ssh-option", ["Port=22", "ProxyJump gate"], ("Port=22", "ProxyJump gate")),
        ("command", ["a.py", "--x", ""], ("a.py", "--x", "")),
        ("grace", 0, 0.0),
        ("fold", False, False),
        ("step-pattern", r"step (\d+)", r"step (\d+)"),
    ],
)
def test_values_of_the_file(key: str, value: object, expected: object) -> None:
    spec = run({}, {}, {key: value}).spec
    field = "ssh_options" if key == "ssh-option" else key.replace("-", "_")
    assert spec.value(field) == expected


def test_an_option_is_named_as_typed() -> None:
    with pytest.raises(UsageError, match=r"^--stop-grace: found 'soon', set a duration"):
        run({"stop_grace": "soon"})
    with pytest.raises(UsageError, match=r"^--ssh-option: found"):
        run({"ssh_options": ["x"]})
    with pytest.raises(UsageError, match=r"--nprocs is not an option\. Did you mean nproc"):
        run({"nprocs": 1})
    assert run({"node_rank": 1}).spec.target.node_rank == 1
    with pytest.raises(ConfigError, match="Give --node-rank on the command line"):
        run({}, {}, {"node_rank": 1})


def test_ssh_options_are_joined_the_stronger_first() -> None:
    resolved = run({"ssh_options": ["Port=1"]}, {}, {"ssh-options": ["Port=2", "User=x"]})
    assert resolved.spec.launch.ssh_options == ("Port=1", "Port=2", "User=x")
    assert resolved.notes == ()


def test_one_target_the_strongest() -> None:
    resolved = run({"local": 2}, {"NNODES": "8"}, {"hosts": "hosts.txt"})
    assert (resolved.spec.target.local, resolved.spec.target.hosts, resolved.spec.target.nodes) == (2, None, None)
    resolved = run({"hosts": "h1,h2"}, {"NNODES": "1"}, {"local": 2})
    assert (resolved.spec.target.local, resolved.spec.target.hosts, resolved.spec.target.nodes) == (None, "h1,h2", 1)


def test_two_targets_of_one_source_are_refused() -> None:
    with pytest.raises(UsageError, match="--local and --hosts are both set"):
        run({"local": 2, "hosts": "h1"})
    with pytest.raises(ConfigError, match=r"allranks\.toml: local and allranks\.toml: hosts are both set"):
        run({}, {}, {"local": 2, "hosts": "h1"})


def test_what_only_a_retry_would_use_is_remarked() -> None:
    assert "--spares 1 without --retries" in run({"spares": 1}).notes[0]
    assert "--on-hang restart without --retries" in run({"on_hang": "restart"}).notes[0]
    assert run({"spares": 1, "on_hang": "restart", "retries": 1}).notes == ()


_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(
    st.text(max_size=5), max_size=3
)  # fmt: skip
_FIELDS = st.sampled_from(FIELDS)


@settings(max_examples=examples(40))
@given(
    st.dictionaries(_FIELDS, _VALUES, max_size=4),
    st.dictionaries(st.sampled_from([*VARIABLES, "NODE_RANK", "WORLD_SIZE"]), st.text(max_size=8), max_size=4),
    st.dictionaries(_FIELDS | st.text(max_size=5), _VALUES, max_size=4),
)
def test_any_input_resolves_or_is_refused(
    options: dict[str, Any], environ: dict[str, str], config: dict[str, Any]
) -> None:
    try:
        resolved = run(options, environ, config)
    except UsageError:
        return
    assert isinstance(resolved.spec, RunSpec)


def test_the_users_own_file_is_below_all_but_the_defaults() -> None:
    user = {"lease": "90s", "retries": 3, "debug": True, "env": {"A": "1"}}
    spec = mine({"retries": 1}, {}, {"lease": "70s"}, user).spec
    assert (spec.limits.lease, spec.recovery.retries, spec.output.debug, spec.launch.env) == (70.0, 1, True, {"A": "1"})
    with pytest.raises(ConfigError, match=r"^config\.toml: 'leese' is not a setting\. Did you mean lease"):
        mine({}, user={"leese": 1})


@pytest.mark.parametrize(
    ("command", "notes"),
    [
        (["train.py", "--nproc", "2"], 1),
        (["train.py", "--hosts=h1,h2"], 1),
        (["train.py", "--epochs", "3"], 0),
        (["-m", "package.train", "--slurm"], 1),
        (["torchrun", "--nproc-per-node", "2", "train.py"], 0),
    ],
    ids=["an option", "with its value", "the program's own", "a module", "a launcher's"],
)
def test_an_option_of_ours_behind_the_program_is_remarked_upon(command: list[str], notes: int) -> None:
    """`allranks run train.py --nproc 2` trains on one rank, as torchrun would, and nothing else says so."""
    found = [note for note in run({"command": command, "local": 1}).notes if "stands before the program" in note]
    assert len(found) == notes


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["train.py", "--hosts", "h1,h2", "--lr", "1"], "--hosts h1,h2 train.py --lr 1"),
        (["train.py", "--hosts=h1,h2"], "--hosts=h1,h2 train.py"),
        (["-m", "package.train", "--slurm"], "--slurm -m package.train"),
    ],
)
def test_nodes_that_are_named_behind_the_program_alone_are_refused(words: list[str], right: str) -> None:
    """The program ran on this machine alone, after a note."""
    with pytest.raises(UsageError, match=rf"hint: allranks run {re.escape(right)}$"):
        run({"command": words})


MINE = {
    "lease": "70s",
    "cluster": {
        "lab": {
            "hosts": ["h1", "h2"],
            "python": "/opt/lab/bin/python",
            "network": "10.1.0.0/16",
            "nodes": 2,
            "env": {"NCCL_IB_HCA": "mlx5"},
        },
        "cloud": {"k8s": True, "namespace": "team"},
        "empty": {},
    },
}


def mine(options: Layer, environ: Layer = None, config: Layer = None, user: Layer = None) -> Resolved:
    """With the user's own file."""
    return run(options, environ, config, user_config=MINE if user is None else user, user_source="config.toml")


def test_a_cluster_gives_its_settings_right_behind_what_names_it() -> None:
    """Of --cluster they override the environment and all files, and an option overrides them, its target too."""
    resolved = mine({"cluster": "lab"}, {"NNODES": "8"}, {"hosts": "other.txt", "retries": 3, "env": {"A": "1"}})
    spec = resolved.spec
    assert (spec.target.cluster, spec.target.hosts, spec.target.nodes) == ("lab", "h1,h2", 2)
    assert (spec.launch.python, spec.recovery.retries, spec.limits.lease) == ("/opt/lab/bin/python", 3, 70.0)
    assert spec.launch.env == {"NCCL_IB_HCA": "mlx5"}
    spec = mine({"cluster": "lab", "local": "3", "python": "py"}).spec
    assert (spec.target.local, spec.target.hosts, spec.launch.python) == (3, None, "py")


@pytest.mark.parametrize("table", [{"forward": "A"}, {"roles": {"a": {"nodes": 1}}}])
def test_what_is_wrong_in_a_table_is_said_of_its_own_file(table: dict[str, Any]) -> None:
    """A stronger file, here the cluster's, may have another of the tables."""
    with pytest.raises(ConfigError, match=r"^allranks\.toml: "):
        mine({"cluster": "lab"}, {}, table)


def test_a_cluster_that_the_project_names_yields_to_the_project() -> None:
    spec = mine({}, {}, {"cluster": "lab", "python": "mine", "env": {"A": "1"}}).spec
    assert (spec.target.hosts, spec.launch.python, spec.launch.env) == ("h1,h2", "mine", {"A": "1"})
    spec = mine({}, {"ALLRANKS_CLUSTER": "cloud"}, {"cluster": "lab"}).spec
    assert (spec.target.cluster, spec.target.hosts, spec.cloud.namespace) == ("cloud", None, "team")
    assert spec.target.k8s
    assert mine({}).spec.target.hosts is None, "a cluster that is not named gives nothing"


@pytest.mark.parametrize(
    ("user", "name", "message"),
    [
        (MINE, "lap", "--cluster: found 'lap', which is not a cluster\nhint: --cluster lab"),
        (MINE, "zzz", "Defined are lab, cloud and empty in config.toml"),
        ({}, "lab", "hint: write [cluster.lab] with hosts"),
        ({"cluster": "lab"}, "lab", "cluster is 'lab', expected tables such as [cluster.lab]"),
        ({"cluster": {"lab": 3}}, "lab", "cluster.lab is 3, expected a table [cluster.lab]"),
        (
            {"cluster": {"lab": {"leese": 1}}},
            "other",
            r"config.toml: [cluster.lab]: 'leese' is not a setting. Did you mean lease?",
        ),
        ({"cluster": {"lab": {"cluster": "b"}}}, "lab", "names another cluster"),
        ({"cluster": {"lab": {"runs-dir": "/r"}}}, "lab", "Set runs-dir above all tables"),
        ({"cluster": {"lab": {"hosts": "a", "slurm": True}}}, "lab", "are both set. Keep one of them"),
        (MINE, "-x", "set the name of a cluster"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused_in_words(user: dict[str, Any], name: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        mine({"cluster": name}, user=user)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("options", "environ", "bounds"),
    [
        ({"nodes": "2:4"}, {}, (2, 4)),
        ({}, {"NNODES": "1:4"}, (1, 4)),
        ({"nodes": 2}, {"NNODES": "1:4"}, (None, 2)),
        ({"nodes": "2:4", "min_nodes": "3"}, {}, (3, 4)),
        ({"min_nodes": 2, "hosts": "h1,h2,h3"}, {}, (2, None)),
        ({"command": ["torchrun", "--nnodes", "2:4", "train.py"]}, {}, (2, 4)),
        ({"command": ["torchrun", "--nnodes=2:4", "train.py"], "nodes": 3}, {}, (None, 3)),
        ({"command": ["torchrun", "--nnodes=2:2", "train.py"]}, {}, (None, None)),
    ],
)
def test_a_number_of_nodes_that_may_change(options: Any, environ: Any, bounds: object) -> None:
    target = run(options, environ).spec.target
    assert (target.min_nodes, target.nodes) == bounds


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": "4:2"}, "Set --nodes 2:4"),
        ({"nodes": "0:2"}, "found '0', set a whole number from 1"),
        ({"nodes": "2:"}, "found '', set a whole number from 1"),
        ({"nodes": "2:4:6"}, "found '4:6', set a whole number from 1"),
        ({"nodes": "2:4", "k8s": True}, "is for --hosts and --local. With --k8s a run has one number"),
        ({"nodes": "2:4", "slurm": True}, "With --slurm a run has one number"),
    ],
)
def test_a_range_that_is_none_is_refused(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        run(options)


@pytest.mark.parametrize(("written", "rule"), [("node", "numa"), ("exclusive", "cores"), ("socket", "socket")])
def test_the_binding_of_a_pasted_torchrun_is_the_runs(written: str, rule: str) -> None:
    """torchrun itself would need numactl, and ranks under it are bound by us."""
    words = ["torchrun", f"--numa-binding={written}", "t.py"]
    for launcher in ({}, {"launcher": "direct"}):
        assert run({"command": words, **launcher}).spec.launch.bind == rule
    assert run({"command": words, "bind": "none"}).spec.launch.bind == "none"


def test_ranks_that_are_not_seen_are_not_bound() -> None:
    with pytest.raises(UsageError, match="hint: leave it out, and start the program with numactl"):
        run({"command": ["./a.sh"], "launcher": "command", "bind": "node"})
