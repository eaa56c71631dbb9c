"""Secrets of a command, a prelude and a traceback appear nowhere that is shown, stored or passed on."""

import json
import shlex
from collections.abc import Callable

import pytest
from tests.shell import Shell

from allranks.report.redact import Redactor
from allranks.settings.secrets import REDACTED, redact_argv, redact_text

SECRET = "0123456789abcdef0123456789abcdef01234567"  # as a key of wandb: no form of its own


@pytest.mark.parametrize(
    "line",
    [
        f'    wandb.login(key="{SECRET}")',
        f"[rank0]:     wandb.login(relogin=True, key='{SECRET}', host=host())",
        f'    run = wandb.login("{SECRET}") or fail(',
        f'    huggingface_hub.login(token="{SECRET}", add_to_git_credential=True)',
    ],
)
def test_a_key_in_the_source_line_of_a_traceback(line: str) -> None:
    text = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{line}\n    ^^^^^^\nE: no'
    redactor = Redactor()
    shown = redactor.text(text, "log"), json.dumps(redactor.value({"allranks": {"traceback": text}}, "error"))
    for found in (*shown, redactor.text(text, "log")):
        assert SECRET not in found
        assert "train.py" in found and "E: no" in found


PROGRAM = ("train.py", "--api-key", SECRET, "--lr", "3")
SHELL = ("sh", "-c", f"python train.py --api-key {SECRET} --lr 3")
PRELUDES = {
    "an assignment": "export WANDB_API_KEY={}",
    "a command of its own": "source env.sh\nwandb login {}\nulimit -n 4096",
    "an option": "huggingface-cli login --token {} --add-to-git-credential",
    "a password": "sshpass -p {} ssh h true && docker login -u me -p {} reg",
    "a URL": "pip config set global.index-url https://me:{}@pypi.example/simple",
    "a header": "curl -H 'Authorization: Bearer {}' https://h/env.sh -o env.sh",
    "a command in a script": "bash -c 'wandb login {}'",
}


def dry_run(shell: Shell, *words: str) -> str:
    answer = shell("run", "--dry-run", "--nproc", "1", *words)
    assert answer.code == 0, answer
    return answer.out + answer.err


TARGETS = [["--local", "2"], ["--hosts", "h1,h2"], ["--local", "1", "--json"]]


@pytest.mark.parametrize("command", [["--", *PROGRAM], ["--launcher", "command", "--", *SHELL]], ids=["words", "shell"])
@pytest.mark.parametrize("target", TARGETS, ids=" ".join)
def test_a_dry_run_hides_the_secrets_of_a_command(shell: Shell, target: list[str], command: list[str]) -> None:
    shown = dry_run(shell, *target, *command)
    assert SECRET not in shown
    assert REDACTED in shown and "--lr" in shown


@pytest.mark.parametrize("target", TARGETS, ids=" ".join)
@pytest.mark.parametrize("name", PRELUDES)
def test_a_dry_run_hides_the_secrets_of_a_prelude(shell: Shell, name: str, target: list[str]) -> None:
    shown = dry_run(shell, *target, "--prelude", PRELUDES[name].replace("{}", SECRET), "train.py")
    assert SECRET not in shown and "train.py" in shown


@pytest.mark.parametrize("hide", [redact_text, lambda text: Redactor().text(text, "log")], ids=["settings", "report"])
@pytest.mark.parametrize("name", PRELUDES)
def test_a_prelude_is_shown_without_its_secrets(name: str, hide: Callable[[str], str]) -> None:
    prelude = PRELUDES[name].replace("{}", SECRET)
    shown = hide(prelude)
    assert SECRET not in shown
    assert shown.split()[0] == prelude.split()[0] and len(shown.splitlines()) == len(prelude.splitlines())


def test_what_is_no_secret_stays() -> None:
    text = "source env.sh\nmodule load cuda/12\nexport A=b TOKENIZERS_PARALLELISM=0\npython tool --max-tokens 5 -p 3"
    assert redact_text(text) == text
    words = shlex.split("sh -c 'python a.py --lr 3 && echo done' --pad-token x")
    assert redact_argv(words) == words
