"""The ranks' variables and which of them must not be written down."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.errors import ConfigError, UsageError
from allranks.settings.layers import Resolved, resolve
from allranks.settings.secrets import REDACTED, redact_argv, redact_env, redact_text
from allranks.settings.variables import RESERVED


def run(items: Any = None, config: dict[str, Any] | None = None, **environ: str) -> Resolved:
    return resolve({"env": items}, environ, config or {}, config_source="a.toml")


def test_values_and_names_of_options() -> None:
    resolved = run(["A=1", "B=x=y", "C=", "D"], D="caller's")
    assert resolved.spec.launch.env == {"A": "1", "B": "x=y", "C": ""}
    assert resolved.spec.launch.forward == ("D",)
    assert resolved.notes == ()


def test_a_name_that_is_not_set_is_refused_as_option_and_noted_in_the_file() -> None:
    with pytest.raises(UsageError, match=r"--env D: D is not set in the environment\. Set it, or write --env D=VALUE"):
        run(["D"])
    resolved = run(None, {"forward": ["D", "E"]}, E="1")
    assert resolved.spec.launch.forward == ("E",)
    assert resolved.notes == ("forward: D is not set in the environment, so it is not forwarded",)


@pytest.mark.parametrize(
    ("items", "config", "environ", "env", "forward"),
    [
        (["A=1", "A=2"], {}, "", {"A": "2"}, ()),
        (["A", "A=2"], {}, "A", {"A": "2"}, ()),
        (["A=2", "A"], {}, "A", {}, ("A",)),
        (["A=x", "B=2", "C"], {"env": {"A": "y", "B": "2", "C": "3"}}, "C", {"A": "x", "B": "2"}, ("C",)),
        (["A=1"], {"forward": ["A", "B"], "env": {"B": "2"}}, "AB", {"A": "1", "B": "2"}, ()),
        (None, {"env": {"A": 8, "B": 0.5}}, "", {"A": "8", "B": "0.5"}, ()),
    ],
    ids=["the last", "a value over a name", "a name over a value", "over the file", "over forward", "numbers"],
)
def test_who_wins(items: Any, config: dict[str, Any], environ: str, env: dict[str, str], forward: Any) -> None:
    launch = run(items, config, **dict.fromkeys(environ, "x")).spec.launch
    assert (launch.env, launch.forward) == (env, forward)


@pytest.mark.parametrize("item", ["", "=1", "1A=1", "A B=1", "A-B=1", "é=1", "A\n=1", "A=a\0b", "-x", 5])
def test_bad_options(item: object) -> None:
    with pytest.raises(UsageError, match=r"^--env"):
        run([item])


@pytest.mark.parametrize(
    "config",
    [
        {"env": "A=1"}, {"env": {"1A": "x"}}, {"env": {"A": True}}, {"env": {"A": []}}, {"env": {"A": "a\0"}},
        {"env": False}, {"env": ""}, {"env": []}, {"env": 0},
        {"forward": "A"}, {"forward": ["A=1"]}, {"forward": [1]}, {"forward": {"A": 1}},
        {"forward": False}, {"forward": ""}, {"forward": 0},
    ],
)  # fmt: skip
def test_bad_files(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^a\.toml: "):
        run(None, config)


def test_a_list_of_names_that_is_none_is_shown() -> None:
    with pytest.raises(ConfigError, match=r"^a\.toml: forward: found 'A', set a list of names"):
        run(None, {"forward": "A"})


def test_a_value_that_is_no_text_is_named_and_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"^a\.toml: \[env\]: set 'B' to a text without NUL, or to a number$"):
        run(None, {"env": {"A": "hunter2", "B": True}})


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_what_differs_between_ranks_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is set by allranks"):
        run([f"{name}=1"])
    with pytest.raises(ConfigError, match="is set by allranks"):
        run(None, {"env": {name: "1"}})


SECRET = [
    "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "PASSWORD", "DB_PASSWD", "MY_PWD",
    "GOOGLE_APPLICATION_CREDENTIALS", "GITHUBTOKEN", "apiKey", "OPENAI_APIKEY", "PGPASSWORD", "DB_PASS", "KEY",
    "client-secret", "SSHPASS", "sshKeys",
]  # fmt: skip
PLAIN = [
    "PATH", "PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "max_tokens", "pad_token", "--eos-token", "OMP_NUM_THREADS",
    "NCCL_DEBUG", "keyboard", "MONKEYS", "", "_", "per_token_loss", "KEYWORD", "PASSES", "COMPASS",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET + PLAIN)
def test_names_of_secrets_and_others(name: str) -> None:
    assert redact_env({name: "hunter2", "A": "b"}) == {name: REDACTED if name in SECRET else "hunter2", "A": "b"}


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("train.py --token=abc --lr 3", "train.py --token=<redacted> --lr 3"),
        ("train.py --api-key abc --lr 3", "train.py --api-key <redacted> --lr 3"),
        ("train.py --use-key --lr 3", "train.py --use-key --lr 3"),
        ("train.py --api-key -abc", "train.py --api-key <redacted>"),
        ("env HF_TOKEN=abc train.py", "env HF_TOKEN=<redacted> train.py"),
        ("train.py logger.api_key=abc", "train.py logger.api_key=<redacted>"),
        ("train.py --max-tokens 512 --pad-token x", "train.py --max-tokens 512 --pad-token x"),
        ("train.py --data https://me:pw@host/x", "train.py --data https://me:<redacted>@host/x"),
        ("train.py --token", "train.py --token"),
        ("token abc", "token abc"),
    ],
)
def test_commands(argv: str, shown: str) -> None:
    assert redact_argv(argv.split()) == shown.split()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export HF_TOKEN=abc; x", "export HF_TOKEN=<redacted>; x"),
        ("A_KEY='a b' B=1 train", "A_KEY=<redacted> B=1 train"),
        ('A_KEY="a b" && x', "A_KEY=<redacted> && x"),
        ("docker run -e PATH=/x img", "docker run -e PATH=/x img"),
    ],
)
def test_shell_texts(text: str, shown: str) -> None:
    assert redact_text(text) == shown


_SECRET_VALUE = "hunter2hunter2"


@given(st.lists(st.sampled_from(["a", "--lr", "3", f"--token={_SECRET_VALUE}", f"MY_KEY={_SECRET_VALUE}", "--x=1"])))
def test_a_secret_never_survives_and_nothing_else_changes(argv: list[str]) -> None:
    shown = redact_argv(argv)
    assert _SECRET_VALUE not in " ".join(shown)
    assert len(shown) == len(argv)
    assert all(after == before for before, after in zip(argv, shown, strict=True) if _SECRET_VALUE not in before)


@given(st.text(max_size=60))
def test_redaction_takes_any_text(text: str) -> None:
    assert redact_env({"A": text}).keys() == {"A"}
    assert len(redact_argv([text, text])) == 2
    assert isinstance(redact_text(text), str)
