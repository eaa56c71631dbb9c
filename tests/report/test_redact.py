"""A planted secret never survives, wherever it stands and however the file is cut; what is none stays."""

import json
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.campaign import examples

from allranks.errors import UsageError
from allranks.protocol.codec import encode
from allranks.report import redact
from allranks.report.redact import REDACTED, WINDOW, Redactor
from allranks.settings import secretforms

ALNUM = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
HEX = "0123456789abcdef"
URLSAFE = ALNUM + "-_"
PRINTED = "".join(chr(c) for c in range(33, 127))


def of(alphabet: str, least: int, most: int | None = None) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most or least)


# Tokens that their form gives away, with nothing beside them.
TOKENS = {
    "Hugging Face": of(ALNUM, 34).map("hf_{}".format),
    "wandb": of(URLSAFE, 70, 90).map("wandb_v1_{}".format),
    "GitHub": st.builds("{}_{}".format, st.sampled_from(["ghp", "gho", "ghu", "ghs", "ghr"]), of(ALNUM, 36)),
    "GitHub, fine-grained": st.builds("github_pat_{}_{}".format, of(ALNUM, 22), of(ALNUM, 59)),
    "GitLab": of(URLSAFE, 20).map("glpat-{}".format),
    "AWS": st.builds("{}{}".format, st.sampled_from(["AKIA", "ASIA"]), of("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16)),
    "Slack": st.builds("{}-{}-{}".format, st.sampled_from(["xoxb", "xoxp"]), of("0123456789", 12), of(ALNUM, 24)),
    "JWT": st.builds("eyJ{}.eyJ{}.{}".format, of(URLSAFE, 20), of(URLSAFE, 40), of(URLSAFE, 43)),
    "Google": of(URLSAFE, 35).map("AIza{}".format),
    "OpenAI": of(URLSAFE, 48).map("sk-proj-{}".format),
    "NVIDIA": of(URLSAFE, 64).map("nvapi-{}".format),
    "npm": of(ALNUM, 36).map("npm_{}".format),
}
# Values without a form, given away by what stands beside them; the value is where the {} is.
PLAIN_VALUE = of(PRINTED.replace('"', "").replace("'", "").replace("\\", ""), 9, 30).filter(
    lambda v: v[0] not in "-=>:<[({)}],;*" and not re.search(r"[)}\],;.:]$", v)
)
WORD_VALUE = of(ALNUM, 9, 40).filter(lambda v: not v.isdigit())  # as a number might stand anywhere
NAMES = ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "my-secret", "PGPASSWORD", "api.token"]
NAMED = ["{n}={v}", "{n} = {v}", '{n}="{v}"', "{n}: {v}", "export {n}='{v}'", '"{n}": "{v}"', "'{n}': '{v}'",
         'os.environ["{n}"] = "{v}"', "setenv {n} {v}", "set -gx {n} {v}", "--{n} {v}", "--{n}={v}", "env={n}={v}",
         "Namespace(lr=1, {n}='{v}', x=2)", '{{"name": "{n}", "value": "{v}"}}', "['--{n}', '{v}']",
         '{{\\"name\\": \\"{n}\\", \\"value\\": \\"{v}\\"}}', '{{\\"{n}\\": \\"{v}\\"}}']  # fmt: skip
BESIDE = ["Authorization: Bearer {}", "authorization: token {}", "wandb login {}", "wandb login --relogin {}",
          "https://user:{}@host/x", "git clone https://x-access-token:{}@github.com/a/b", "sshpass -p {} ssh h",
          "curl -u me:{} https://h", "docker login -u me -p {} reg", "machine h login me password {}",
          "your access token is {}", "https://h/x?a=1&sig={}", "Cookie: session={}",
          "https://hooks.slack.com/services/{}"]  # fmt: skip

named = st.builds(lambda form, n, v: (form.format(n=n, v=v), v), st.sampled_from(NAMED), st.sampled_from(NAMES),
                  st.one_of(PLAIN_VALUE, WORD_VALUE))  # fmt: skip
beside = st.builds(lambda form, v: (form.format(v), v), st.sampled_from(BESIDE), of(ALNUM, 16, 40))
token = st.one_of(list(TOKENS.values())).map(lambda t: (t, t))
secrets = st.one_of(token, named, beside)
noise = st.text(st.characters(codec="utf-8", exclude_characters="\x1b\x9b\x90\x9d\u2028"), max_size=80).map(
    lambda text: text.replace("\n", " ")
)


def hidden(redactor: Redactor) -> int:
    return sum(h.count for h in redactor.hidden)


@settings(max_examples=examples(70))
@given(st.lists(st.tuples(noise, secrets), min_size=1, max_size=3))
def test_no_planted_secret_survives_in_a_log(parts: list[tuple[str, tuple[str, str]]]) -> None:
    data = "\n".join(f"{before} {text}" for before, (text, _) in parts).encode()
    redactor = Redactor()
    assume(data.decode().count(parts[-1][1][1]) == 1)  # only where it was planted
    found = redactor.text(data.decode(), "f")
    for _, (text, secret) in parts:
        assert secret not in found or data.decode().count(secret) > 1, (text, found)
    assert hidden(redactor) >= 1


@settings(max_examples=examples(70))
@given(noise, secrets, noise)
def test_nor_a_json_document(before: str, planted: tuple[str, str], after: str) -> None:
    text, secret = planted
    assume(secret not in before + after)
    document = {"message": f"{before} {text}", "list": [before, {"deep": f"{text}"}], "trace": f"{after}\n  {text}\n"}
    found = json.dumps(Redactor().value(document, "f"), ensure_ascii=False)
    assert secret not in found
    line = Redactor().json_line(json.dumps(document), "f", 3)
    assert line is not None
    assert secret not in json.dumps(json.loads(line), ensure_ascii=False)


@settings(max_examples=examples(50))
@given(st.sampled_from(NAMES), st.one_of(of(PRINTED, 12, 40), st.integers(10**8)))
def test_a_secret_name_hides_any_value_in_json(name: str, value: object) -> None:
    found = Redactor().value({"env": {name: value}}, "f")
    assert found["env"] == {name: REDACTED}


def test_in_json_lists_of_words_and_pairs() -> None:
    redactor = Redactor()
    found = redactor.value({"argv": ["train.py", "--api-key", "abc", "--lr", "3"],
                            "env": [{"name": "HF_TOKEN", "value": "abc"}, {"name": "A", "value": "b"}],
                            "tokens": {"pad_token": "<pad>"}, "api_keys": ["abc", {"x": "abc"}]}, "f")  # fmt: skip
    assert found == {"argv": ["train.py", "--api-key", REDACTED, "--lr", "3"],
                     "env": [{"name": "HF_TOKEN", "value": REDACTED}, {"name": "A", "value": "b"}],
                     "tokens": {"pad_token": "<pad>"}, "api_keys": [REDACTED, {"x": REDACTED}]}  # fmt: skip
    [said] = redactor.hidden
    assert said == redact.Hidden("named value", "f", 4, ["argv", "env.value", "api_keys"])


def pem(body: str, kind: str = "RSA PRIVATE KEY") -> str:
    lines = [body[i : i + 64] for i in range(0, len(body), 64)]
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----"])


@settings(max_examples=examples(40))
@given(of(ALNUM + "+/", 130, 600), st.sampled_from(["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY",
       "PGP PRIVATE KEY BLOCK", "EC PRIVATE KEY"]), st.sampled_from(["{}", "[rank0]: {}", "key='{}'"]))  # fmt: skip
def test_private_keys_go_whole(body: str, kind: str, form: str) -> None:
    block = form.format(pem(body, kind))
    found = Redactor().text(f"before\n{block}\nafter", "f")
    one_line = Redactor().text("x " + block.replace("\n", "\\n") + "\nafter", "f")
    for text in (found, one_line):
        assert not [body[i : i + 20] for i in range(0, len(body) - 20, 20) if body[i : i + 20] in text]
        assert text.endswith("after")


def test_a_certificate_is_none_and_a_key_without_an_end_has_one() -> None:
    certificate = pem("MIIB" * 40, "CERTIFICATE")
    assert Redactor().text(certificate, "f") == certificate
    endless = "-----BEGIN PRIVATE KEY-----\n" + "\n".join(f"line {i}" for i in range(1000))
    assert Redactor().text(endless, "f").endswith("line 999")


def test_what_goes_on_in_the_next_line() -> None:
    text = "name: HF_TOKEN\nvalue: abc\nname: A\nvalue: b\n- password: >-\n    abc\n    abc\n\n- x: 1"
    assert Redactor().text(text, "f") == "name: HF_TOKEN\nvalue: <redacted>\nname: A\nvalue: b\n- password: <redacted>\n\n\n\n- x: 1"  # noqa: E501


STAYS = """
commit 0d1a26e67d8f5eaf1f6ba5c57fc3c7d91ac0fd1c
HEAD is now at ea632f6 Files beside the runner go by name
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  model.safetensors
md5: d41d8cd98f00b204e9800998ecf8427e
h1:2711:2755 [0] NCCL INFO comm 0x55d1c3b7a2f0 rank 0 nranks 8 busId 1b000 commId 0x8f2e9d0c5b1a7e34 - Init START
h1:2711:2755 [0] NCCL INFO ncclUniqueId 0x1234567890abcdef1234567890abcdef
/home/me/.cache/huggingface/hub/models--meta-llama--L3/snapshots/8cde5ca8380496c9a6cc7ef3a8b46a0372a1d920/config.json
  File "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl
KeyError: 'model.layers.0.self_attn.q_proj.weight'
RuntimeError: Error(s) in loading state_dict for GPT: Missing key(s) in state_dict: "head.weight".
_IncompatibleKeys(missing_keys=['head.weight'], unexpected_keys=['lm_head.weight'])
num_key_value_heads: 8, "num_attention_heads": 32, pad_token_id=0, eos_token="</s>", tokens_per_second=1234
step 10 loss 2.31 tokens: 81920 tok/s 12345 token: 17 max_new_tokens=128
torch.distributed.DistStoreError: Timed out after 11 seconds waiting for clients. 1/2 clients joined. key: /default_pg/0
HF_TOKEN_PATH=/root/.cache/huggingface/token SSH_AUTH_SOCK=/tmp/ssh-abc/agent.1 TOKENIZERS_PARALLELISM=false
use_auth_token=None token=True api_key: null password=********
connect to h1:29500 http://10.0.0.1:8080/metrics@latest tcp://[::1]:1234 ssh://git@github.com/a/b.git
GPU-8f2e9d0c-5b1a-7e34-9d0c-5b1a7e348f2e uuid 550e8400-e29b-41d4-a716-446655440000 mlx5_0:1
AuthenticationError: 401; PASSED 3; passing: 4; author: me; monkeys=3; keyboard: us
ValueError: bad batch at 0x7f8a9c0d1e2f; task-distributed-training-of-large-models done
""".strip().splitlines()


@pytest.mark.parametrize("line", STAYS)
def test_what_is_no_secret_stays(line: str) -> None:
    redactor = Redactor()
    assert redactor.text(line, "f") == line
    assert redactor.value({"a": [line]}, "f") == {"a": [line]}
    assert redactor.hidden == []


@settings(max_examples=examples(70))
@given(of(HEX, 40), of(HEX, 64), of(HEX, 16), st.lists(of(ALNUM.lower() + "_", 1, 12), min_size=1, max_size=6))
def test_hashes_and_paths_stay(git: str, sha: str, number: str, path: list[str]) -> None:
    line = f"at {git} sha256 {sha} commId 0x{number} in /{'/'.join(path)}"
    assert Redactor().text(line, "f") == line or re.search(r"hf_|api_org|dapi|sk_", line)


@settings(max_examples=examples(70))
@given(st.one_of(noise, secrets.map(lambda s: s[0])))
def test_the_quick_look_misses_nothing(text: str) -> None:
    def note(_kind: str) -> None:
        pass

    text = redact.plain(text)
    if not secretforms.may_hold(text):
        assert redact.hide_forms(text, note) == text


def test_long_lines_are_cut_where_no_secret_can_be() -> None:
    secret = "hf_" + "a1B2" * 9
    for filler in range(WINDOW - 60, WINDOW + 10, 5):
        found = Redactor().text("x" * (filler - 1) + " " + secret + " " + "y" * 200_000 + "\nnext", "f")
        assert "hf_a" not in found and found.endswith("\nnext")
    giant = Redactor().text("z" * 1_000_000 + "\nnext", "f")
    assert len(giant) < WINDOW and giant.endswith("\nnext")


def test_escapes_cannot_hide_a_secret() -> None:
    secret = "hf_" + "a1B2" * 9
    for text in (f"\x1b[32m{secret}\x1b[0m", f"{secret[:9]}\x1b[1m{secret[9:]}", f"{secret[:9]}\x00{secret[9:]}",
                 f"{secret[:9]}\u200b{secret[9:]}", f"\x1b]0;{secret}\x07 x"):  # fmt: skip
        assert secret[9:] not in Redactor().text(text, "f")


def test_the_users_patterns_and_known_values() -> None:
    redactor = Redactor(["acme-[a-z]+"], ["correct horse battery", "short", "two\nsecond-line-of-it"])
    found = redactor.text("acme-gpu says correct horse battery, short second-line-of-it", "f", 7)
    assert found == "<redacted> says <redacted>, short <redacted>"
    assert encode(redactor.hidden) == [
        {"kind": "known value", "file": "f", "count": 2, "lines": [7]},
        {"kind": "user's pattern", "file": "f", "count": 1, "lines": [7]},
    ]
    with pytest.raises(UsageError, match=r"--redact '\(' is not a regular expression"):
        Redactor(["("])


@pytest.mark.parametrize("line", ["a" * 200_000, "=" * 100_000, "key" * 30_000, "token=" * 10_000, "a.b-" * 20_000,
                                  "://a:" * 10_000, '"' * 60_000, "eyJ." * 16_000, "-----BEGIN " * 6000])  # fmt: skip
def test_hostile_lines_come_to_an_end(line: str) -> None:
    assert isinstance(Redactor().text(line, "f"), str)
