"""Tokens of a known form are hidden in words of a command, in values of --env, and in what a check saves."""

import pytest

from allranks.runs.preflight import document
from allranks.settings.secrets import REDACTED, redact_argv, redact_document, redact_env

TOKENS = (
    "hf_" + "a1" * 17,
    "ghp_" + "b2" * 18,
    "sk-" + "c3" * 16,
    "xoxb-" + "12345678901",
    "AKIA" + "ABCDEFGH12345678",
)


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_without_a_name_is_hidden(token):
    assert redact_argv(["train.py", token, f"--x={token}"]) == ["train.py", REDACTED, f"--x={REDACTED}"]
    assert redact_env({"PLAIN": token}) == {"PLAIN": REDACTED}


def test_a_saved_check_has_no_password():
    saved = document({"command": ["train.py", "--password", "x1"]}, {}, (), 0.0)
    assert saved.request["command"] == ["train.py", "--password", REDACTED]


def test_a_document_is_redacted_by_its_writer() -> None:
    token = "hf_" + "a1B2" * 8
    kept = {
        "host": "sk-telecom-gpu-cluster-node-01",
        "workdir": "/data/xai-Training-runs-2026-checkpoints",
        "verdict": "sk-telecom-gpu-cluster-node-01 fell silent",
    }
    given = {
        "command": ["train.py", "--password", "hunter2", "--lr", "3"],
        "left": {"h1": [{"pid": 4, "command": "python train.py --password hunter2"}]},
        "message": f"401 with {token}, --password hunter2 of the page",
        "evidence": (f"http://u:pp@h/ {token}", 7),
        **kept,
    }
    assert redact_document(given) == {
        "command": ["train.py", "--password", REDACTED, "--lr", "3"],
        "left": {"h1": [{"pid": 4, "command": f"python train.py --password {REDACTED}"}]},
        "message": f"401 with {REDACTED}, --password hunter2 of the page",
        "evidence": [f"http://u:{REDACTED}@h/ {REDACTED}", 7],
        **kept,
    }
