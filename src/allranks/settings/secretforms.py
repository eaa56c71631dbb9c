"""What secrets look like in text: tokens of known form, headers, assignments, passwords in URLs (pure).

A row is a kind, and where in a text it finds secrets. Tokens are matched by the form that
their issuer gives them. What has no form of its own (a wandb key is 40 hexadecimal digits, as is a git hash) is
found by the name or the command beside it: `ASSIGNED`, `FLAGGED`, `SET` and `PAIRED` give a name that
`allranks.settings.secrets` judges. All patterns are for one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

QUOTED = r"""[bBrRuUfF]{0,2}"(?:[^"\\]|\\.)*"?[^\s,;)}\]"'<>]*|[bBrRuUfF]{0,2}'(?:[^'\\]|\\.)*'?[^\s,;)}\]"'<>]*"""
VALUE = rf"(?P<value>{QUOTED}|\S+)"
_NAME = r"(?<![\w.-])(?P<name>[\w.-]+)"
_QUOTE = r"""\\{0,8}["']?"""
_VALUE_AT = re.compile(VALUE)

Span = tuple[int, int]


class Form(NamedTuple):
    """`needs`: a literal without which a text holds none ("" where no one literal is in all of them)."""

    kind: str
    needs: str
    spans: Callable[[str], Iterator[Span]]


def _row(kind: str, pattern: str, group: int | str = 0, needs: str = "") -> Form:
    compiled = re.compile(pattern)
    return Form(kind, needs, lambda text: (match.span(group) for match in compiled.finditer(text)))


def _private_keys(text: str) -> Iterator[Span]:
    """From each beginning to the next end; a beginning without an end is the caller's affair (`Lines`)."""
    done = 0
    for begin in PEM_BEGINS.finditer(text):
        if begin.start() < done:
            continue
        end = PEM_ENDS.search(text, begin.end())
        if end is None:
            return
        yield begin.start(), end.end()
        done = end.end()


_URL_RUN = re.compile(r"[^\s\"'<>]+")
_URL_USER = re.compile(r"://[^\s/:@\"'<>]{0,200}:(?!\d{1,5}(?:[/?#\s]|$))")


def _url_passwords(text: str) -> Iterator[Span]:
    """scheme://user:PASSWORD@host: of each run of characters that may be URLs, from a user's end to the last `@`."""
    for run in _URL_RUN.finditer(text):
        last = run[0].rfind("@")
        if last < 0:
            continue
        user = _URL_USER.search(run[0], 0, last)
        if user is not None:
            yield run.start() + user.end(), run.start() + last


_SEGMENT = re.compile(r"[^|;]+")
_COMMANDS = (
    (re.compile(r"\bcurl\b"), re.compile(r"\s(?:-u|--user)(?=[ =\t])[ =\t]*")),
    (re.compile(r"\b(?:docker|podman|helm|skopeo)\b[^|;]{0,100}?\slogin\b"), re.compile(r"\s-p[ =\t]*")),
)


def _command_passwords(text: str) -> Iterator[Span]:
    """Yield the values of a flag behind a command, as far as the command goes (to `|` or `;`)."""
    for segment in _SEGMENT.finditer(text):
        for command, flag in _COMMANDS:
            begin = command.search(text, *segment.span())
            if begin is None:
                continue
            for option in flag.finditer(text, begin.end(), segment.end()):
                value = _VALUE_AT.match(text, option.end())
                if value is not None:
                    yield value.span("value")


_LOGIN = re.compile(r"\blogin\(")
_LITERAL = re.compile(r"""[bBrRuUfF]{0,2}(?:"[^"\\]*(?:\\.[^"\\]*)*"?|'[^'\\]*(?:\\.[^'\\]*)*'?)|[()\[\]{}]""")


def _login_calls(text: str) -> Iterator[Span]:
    """login("user", "password"), wandb.login(key="…"): literals among the arguments, but in no call within them."""
    done = 0
    for call in _LOGIN.finditer(text):
        if call.start() < done:
            continue
        depth = 1
        for part in _LITERAL.finditer(text, call.end()):
            done = part.end()
            if part[0] in "([{":
                depth += 1
            elif part[0] in ")]}":
                depth -= 1
                if depth == 0:
                    break
            elif depth == 1:
                yield part.span()


PEM_BEGINS = re.compile(r"-----BEGIN [^-]{0,40}PRIVATE KEY[^-]{0,20}-----")
PEM_ENDS = re.compile(r"-----END [^-]{0,60}-----")
FORMS = (
    Form("private key", "-----BEGIN", _private_keys),
    _row("private key", r"AGE-SECRET-KEY-1[0-9A-Za-z]{20,}"),
    _row("Hugging Face token", r"(?:hf|api_org)_[A-Za-z0-9]{20,}"),
    _row("wandb key", r"wandb_v\d{1,4}_[A-Za-z0-9_-]{20,}"),
    _row("wandb key", r"\bwandb\s+login\s+(?:-[\w-]*\s+)*(?P<value>[^\s-]\S{11,})", "value", "wandb"),
    Form("argument of login()", "login(", _login_calls),
    _row("key", r"(?<![\w.-])key ?= ?(?P<value>\"[A-Za-z0-9+/=_-]{20,}\"|'[A-Za-z0-9+/=_-]{20,}')", "value", "key"),
    _row("GitHub token", r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}"),
    _row("GitLab token", r"gl(?:pat|dt|rt|soat|ptt|cbt|ft|imt|agent)-[A-Za-z0-9_-]{20,}"),
    _row("AWS key", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"),
    _row("Slack token", r"xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"),
    _row("Slack token", r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<value>[A-Za-z0-9/_-]+)", "value"),
    _row("JWT", r"(?<![A-Za-z0-9_-])(?:(?!eyJ)[A-Za-z0-9_-])*"
         r"(?P<value>eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*){1,3})", "value", "eyJ"),
    _row("Google key", r"AIza[0-9A-Za-z_-]{35}|ya29\.[0-9A-Za-z_-]{20,}|GOCSPX-[0-9A-Za-z_-]{20,}"),
    _row("API key", r"(?<![A-Za-z0-9])(?:sk-|[sr]k_(?:live|test)_)[A-Za-z0-9_-]{20,}"),
    _row("API key", r"(?:nvapi|dckr_pat|dckr_oat|pypi-AgE|xai|pplx)[A-Za-z0-9_-]{20,}"),
    _row("API key", r"(?:npm_|do[po]_v1_|r8_|gsk_|lsv2_[ps]t_|dapi)[A-Za-z0-9_]{32,}"),
    _row("API key", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    _row("authorization header",
         rf"(?i)(?:proxy-)?authori[sz]ation{_QUOTE}\s*[:=,]\s*(?P<value>{QUOTED}|[^\"'\r\n]+)", "value"),
    _row("authorization header", r"(?i)\bbearer[ \t]+(?P<value>[A-Za-z0-9._~+/=-]{12,})", "value"),
    _row("authorization header", r"(?i)\bbasic[ \t]+(?P<value>[A-Za-z0-9+/=_-]{16,})", "value"),
    _row("cookie", rf"(?i)\b(?:set-)?cookie{_QUOTE}\s*[:=,]\s*(?P<value>{QUOTED}|[^\"'\r\n]+)", "value"),
    Form("password in a URL", "://", _url_passwords),
    _row("password in a URL", r"(?i)https?://(?P<value>[A-Za-z0-9_-]{20,})@", "value", "://"),
    _row("signed URL", r"(?i)[?&;](?:key|sig|signature|sign|x-[a-z]{1,20}-(?:signature|credential|security-token))"
         r"=(?P<value>[^&\s\"'<>#]+)", "value"),
    _row("password of a command", rf"\bsshpass\s+-p[ =\t]*{VALUE}", "value", "sshpass"),
    Form("password of a command", "", _command_passwords),
    _row("netrc", rf"(?i)\blogin\s+\S+\s+password\s+{VALUE}", "value"),
    _row("netrc", r"(?i)^\s*password\s+(?P<value>\S+)\s*$", "value"),
)  # fmt: skip

# A name and what stands between it and its value, which `VALUES` takes from there on:
# NAME=value, NAME = "value", "name": "value", os.environ["NAME"] = 'value', name => value
ASSIGNED = re.compile(rf"{_NAME}(?:{_QUOTE}\]?[ \t]*={{1,3}}>?[ \t]*|{_QUOTE}:[ \t]*)")
# --api-key value, ['--api-key', 'value'], setenv NAME value, set -gx NAME value
FLAGGED = re.compile(rf"(?<![\w.-])--?(?P<name>[A-Za-z][\w.-]*){_QUOTE},?[ \t]+(?!--)")
SET = re.compile(r"\b(?:setenv|set(?:[ \t]+-[A-Za-z]{1,8}){1,6})[ \t]+(?P<name>[A-Za-z_][\w.-]*)[ \t]+")
# "name": "HF_TOKEN", "value": … as Kubernetes writes variables; PAIR_BEGINS and PAIR_ENDS where it is two lines
_IS = rf"{_QUOTE}[ \t]*[:=][ \t]*"
PAIRED = re.compile(rf"(?<![\w.\\-]){_QUOTE}name{_IS}{_QUOTE}(?P<name>[\w.-]+){_QUOTE}[ \t]*,[ \t]*{_QUOTE}value{_IS}")
PAIR_BEGINS = re.compile(rf"(?<![\w.\\-]){_QUOTE}name{_IS}{_QUOTE}(?P<name>[\w.-]+){_QUOTE}[ \t]*(?:,[ \t]*)?$")
PAIR_ENDS = re.compile(rf"^\W*value{_IS}")
# "Your access token: …", "the secret key is …"
SPOKEN = re.compile(
    r"(?i)\b(?P<name>(?:api|access|secret|auth|private|session|refresh|security|join)[ _-]?(?:key|token)s?)"
    rf"{_QUOTE}[ \t]*(?:\bis\b|[:=])[ \t]*"
)
BLOCK_BEGINS = re.compile(r"""^(?P<indent>\s*(?:-\s+)?)["']?(?P<name>[\w.-]+)["']?:[ \t]*[|>][+-]?\d?[ \t]*$""")
VALUES = re.compile(VALUE)
# A password may be a phrase: up to the next NAME=, or the end of the line.
PHRASES = re.compile(rf"{QUOTED}|\S.*?(?=(?<![ \t])[ \t]+[\w.-]+=|$)")
PHRASED = re.compile(r"(?i)pass(?:word|wd|phrase)|kennwort|passwort")

# A line that has none of these, in lower case, holds no secret of the forms above.
_TRIGGERS = (
    "token key secret pass pwd auth cred cookie bearer basic private login curl :// sig= sign= signature hf_ "
    "api_org wandb ghp_ gho_ ghu_ ghs_ ghr_ github_pat glpat- gldt- glrt- glsoat- glptt- glcbt- glft- glimt- "
    "glagent- akia asia abia acca xox xapp- slack eyj aiza ya29 gocspx sk- sk_ rk_ nvapi dckr pypi- xai pplx npm_ "
    "dop_v1 doo_v1 r8_ gsk_ lsv2 dapi sg. kennwort"
)
TRIGGERS = _TRIGGERS.split()


def may_hold(text: str) -> bool:
    """Tell whether a line has to be looked at."""
    lower = text.lower()
    return any(word in lower for word in TRIGGERS)
