"""Roles as they are written: what is read, what is refused and how, and who gets which nodes."""

import pytest
import tomllib

from allranks.errors import UsageError
from allranks.settings import RunSpec
from allranks.settings.document import from_document, to_document
from allranks.settings.layers import resolve
from allranks.settings.roles import as_toml, deal, node_count, ports_of, roles_of, spec_of

TWO = """
[roles.rollout]
command = "vllm serve 'my model' --port {rollout.port.http}"
nodes = 1
env = { TOKEN = "hush-7", N = 2 }
ready = "http://{address}:{rollout.port.http}/health"
[roles.trainer]
command = ["train.py", "{rollout.address}:{rollout.port.http}"]
after = ["rollout"]
"""


def spec_from(text: str, **options: object) -> RunSpec:
    """The settings of an allranks.toml."""
    return resolve(options, {}, tomllib.loads(text), config_source="allranks.toml").spec  # type: ignore[arg-type]


def test_two_roles_are_read_with_what_follows_from_each_other() -> None:
    spec = spec_from("nproc = 8\nlease = '9s'\n" + TWO)
    rollout, trainer = spec.launch.roles
    assert rollout.command == ("vllm", "serve", "my model", "--port", "{rollout.port.http}")
    assert (rollout.ends, rollout.launcher, rollout.hang, trainer.ends, trainer.launcher, trainer.hang) == (
        "never", "command", False, "run", "direct", True,
    )  # fmt: skip
    own = spec_of(spec, rollout)
    assert (own.launch.command, own.launch.nproc, own.limits.lease) == (rollout.command, 8, 9.0)
    assert (own.limits.hang_timeout, own.recovery.retries, own.launch.roles) == (0.0, 0, ())
    assert ports_of(spec.launch.roles, "rollout") == ("http",)
    assert deal(spec.launch.roles, 4, "hosts.txt") == {"rollout": [0], "trainer": [1, 2, 3]}


def test_a_saved_spec_has_the_roles_without_their_secrets() -> None:
    spec = spec_from(TWO)
    document = to_document(spec)
    assert "hush-7" not in str(document)
    again = from_document(document)
    assert [role.name for role in again.launch.roles] == ["rollout", "trainer"]
    assert {"roles", "role", "roles_file"}.isdisjoint(to_document(RunSpec.of(command=("train.py",))))


def test_a_plain_run_has_one_role_that_is_its_own_settings() -> None:
    spec = RunSpec.of(command=("train.py",), nproc=2)
    (role,) = roles_of(spec)
    assert role.is_plain and spec_of(spec, role) is spec


def test_roles_of_the_command_line_start_one_after_another() -> None:
    first, second = spec_from("", role=["a:1 serve.py x", "b:2 train.py {a.address}"]).launch.roles
    assert (first.nodes, first.ends, second.nodes, second.after) == (1, "never", 2, ("a",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[roles.a]\ncommand = "x"\nnods = 1', "[roles.a]: 'nods' is not a key of a role. Did you mean nodes?"),
        ('[roles.a]\nnodes = 1', "[roles.a]: command is missing"),
        ('[roles.a]\ncommand = "x"\nnodes = 0', "[roles.a] nodes: found 0, set a whole number from 1 to"),
        ('[roles.A]\ncommand = "x"', "[roles.A]: found 'A', set the name of a role: small letters"),
        ('[roles.run]\ncommand = "x"', "a role cannot be called run"),
        ('[roles.a]\ncommand = "x"\nready = "tcp:1"', "ready: found 'tcp:1', set a test such as \"port:8000\""),
        ('[roles.a]\ncommand = "x"\nready = "output:("', "ready: found 'output:(', set a regular expression"),
        ('[roles.a]\ncommand = "x"\nafter = ["b"]', "b is not a role. Roles are a"),
        ('[roles.a]\ncommand = "x"\nafter = ["a"]', "a is the role itself"),
        ('[roles.a]\ncommand = "x \'"', "[roles.a] command: found \"x '\", set a line such as"),
        ('[roles.a]\ncommand = "x"\nenv = { RANK = "1" }', "RANK differs between ranks or nodes"),
        ('[roles.a]\ncommand = "x {b.address}"', "[roles.a] has {b.address}: b is not a role"),
        ('[roles.a]\ncommand = "x {a.adress}"', "[roles.a] has {a.adress}, which is unknown: {a.address}"),
        ('[roles.a]\ncommand = "x {a.port}"', "[roles.a] has {a.port}, which is unknown"),
        ('[roles.a]\ncommand = "x"\nends = "any"', "the success of no role ends the run"),
        (
            '[roles.a]\ncommand = "x"\nafter = ["b"]\n[roles.b]\ncommand = "y"\nafter = ["a"]',
            "roles wait for each other, a after b after a",
        ),
        ('[roles.a]\ncommand = "x"\n[roles.b]\ncommand = "y"', "a and b have no number of nodes, and one role alone"),
        ('[roles.a]\ncommand = "x"\n[roles.b]\ncommand = "y"\nwith = "a"', "share nodes, so each names its GPUs"),
        (
            '[roles.a]\ncommand = "x"\ngpus = "0-3"\n[roles.b]\ncommand = "y"\nwith = "a"\ngpus = "3,4"',
            "b and a share nodes, and both have GPU 3",
        ),
        ('command = ["train.py"]\n[roles.a]\ncommand = "x"', "names the roles of the run, so a command belongs to one"),
        ('retries = 2\n[roles.a]\ncommand = "x"', "--retries is of a run with one role. allranks.toml has several"),
        ('[roles]\na = 1', "roles.a is 1, expected a table [roles.a]"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        spec_from(text)
    assert says in str(refused.value)


def test_more_nodes_than_there_are_are_refused_with_who_wants_them() -> None:
    roles = spec_from(TWO.replace("after", "nodes = 3\nafter")).launch.roles
    with pytest.raises(UsageError, match=r"the roles need 4 nodes \(rollout 1, trainer 3\), and --hosts has 3"):
        deal(roles, 3, "--hosts")


def test_a_role_with_another_has_the_same_places_and_its_own_gpus() -> None:
    text = TWO + 'gpus = "4-7"\n[roles.eval]\ncommand = "eval.py"\nwith = "trainer"\ngpus = "0,1"\nends = "any"\n'
    spec = spec_from(text)
    assert deal(spec.launch.roles, 3, "x") == {"rollout": [0], "trainer": [1, 2], "eval": [1, 2]}
    own = spec_of(spec, spec.launch.roles[2])
    assert (own.launch.env["CUDA_VISIBLE_DEVICES"], own.launch.nproc) == ("0,1", 2)


WRITTEN = [
    TWO.replace("TOKEN", "MODE"),
    """
    [roles.server]
    command = "numactl -N 0 python serve.py 'a b' \\"c\\" $HOME \\u007f"
    env = { "A" = "x\\ty", B = "é \\U0001f600" }
    nodes = 2
    prelude = "source a\\nb"
    ready = "output:^up"
    ready_timeout = "90s"
    on_failure = "restart"
    retries = 5
    [roles.trainer]
    command = "OMP_NUM_THREADS=2 torchrun --max-restarts 0 train.py"
    nodes = 1
    nproc = 2
    after = ["server"]
    [roles.evaluator]
    command = "python eval.py"
    with = "trainer"
    gpus = "none"
    ends = "any"
    hang = false
    launcher = "command"
    """.replace("nproc = 2", 'nproc = 2\n    gpus = "0,1"'),
]


@pytest.mark.parametrize("text", WRITTEN, ids=["two", "three"])
def test_roles_that_are_written_are_read_again(text: str) -> None:
    roles = spec_from(text).launch.roles
    assert spec_from(as_toml(roles)).launch.roles == roles


def test_a_secret_of_a_role_is_not_written() -> None:
    with pytest.raises(UsageError, match=r"TOKEN, and a secret is not written.*\n.*--env TOKEN"):
        as_toml(spec_from(TWO).launch.roles)


def test_the_number_of_nodes_is_the_sum_where_none_is_asked_for() -> None:
    open_ended = spec_from(TWO.replace("TOKEN", "MODE"))
    with pytest.raises(UsageError, match=r"trainer takes the nodes that are left.*\nhint: --nodes N"):
        node_count(open_ended)
    assert node_count(open_ended.changed(nodes=4)) == 4
    assert node_count(spec_from(WRITTEN[1])) == 3
    with pytest.raises(UsageError, match="the roles need 3 nodes"):
        node_count(spec_from(WRITTEN[1]).changed(nodes=2))


def test_what_is_refused_names_the_file_of_the_roles() -> None:
    with pytest.raises(UsageError, match=r"^mine\.toml: \[roles\.rollout\]: 'redy' is not a key of a role"):
        spec_from(TWO.replace("ready =", "redy ="), roles_file="mine.toml")
