"""What secrets look like in text: tokens of known form, headers, assignments, passwords in URLs (pure).

A row is a kind, a pattern, and the group that is secret (0: all of it). Tokens are matched by the form that
their issuer gives them. What has no form of its own (a wandb key is 40 hexadecimal digits, as is a git hash) is
found by the name or the command beside it: `ASSIGNED`, `FLAGGED`, `SET` and `PAIRED` give a name that
`allranks.spec.secrets` judges. All patterns are for one line.
"""

from __future__ import annotations

import re

QUOTED = r"""[bBrRuUfF]{0,2}"(?:[^"\\]|\\.)*"?[^\s,;)}\]"'<>]*|[bBrRuUfF]{0,2}'(?:[^'\\]|\\.)*'?[^\s,;)}\]"'<>]*"""
VALUE = rf"(?P<value>{QUOTED}|\S+)"
_NAME = r"(?<![\w.-])(?P<name>[\w.-]+)"
_QUOTE = r"""\\*["']?"""


def _row(kind: str, pattern: str, group: int | str = 0) -> tuple[str, re.Pattern[str], int | str]:
    return kind, re.compile(pattern), group


FORMS = (
    _row("private key", r"-----BEGIN [^-]{0,40}PRIVATE KEY[^-]{0,20}-----(?:.*?-----END [^-]{0,60}-----)"),
    _row("private key", r"AGE-SECRET-KEY-1[0-9A-Za-z]{20,}"),
    _row("Hugging Face token", r"(?:hf|api_org)_[A-Za-z0-9]{20,}"),
    _row("wandb key", r"wandb_v\d+_[A-Za-z0-9_-]{20,}"),
    _row("wandb key", r"\bwandb\s+login\s+(?:--?[\w-]+\s+)*(?P<value>[^\s-]\S{11,})", "value"),
    _row("GitHub token", r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}"),
    _row("GitLab token", r"gl(?:pat|dt|rt|soat|ptt|cbt|ft|imt|agent)-[A-Za-z0-9_-]{20,}"),
    _row("AWS key", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"),
    _row("Slack token", r"xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"),
    _row("Slack token", r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<value>[A-Za-z0-9/_-]+)", "value"),
    _row("JWT", r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*){1,3}"),
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
    _row("password in a URL",
         r"://[^\s/:@\"'<>]{0,200}:(?!\d{1,5}(?:[/?#\s]|$))(?P<value>[^\s\"'<>]{0,2000})@", "value"),
    _row("password in a URL", r"(?i)https?://(?P<value>[A-Za-z0-9_-]{20,})@", "value"),
    _row("signed URL", r"(?i)[?&;](?:key|sig|signature|sign|x-[a-z]+-(?:signature|credential|security-token))"
         r"=(?P<value>[^&\s\"'<>#]+)", "value"),
    _row("password of a command", rf"\b(?:sshpass\s+-p|curl\b[^|;]*?\s(?:-u|--user)(?=[ =\t]))[ =\t]*{VALUE}", "value"),
    _row("password of a command",
         rf"\b(?:docker|podman|helm|skopeo)\b[^|;]*?\slogin\b[^|;]*?\s-p[ =\t]*{VALUE}", "value"),
    _row("netrc", rf"(?i)\blogin\s+\S+\s+password\s+{VALUE}", "value"),
    _row("netrc", r"(?i)^\s*password\s+(?P<value>\S+)\s*$", "value"),
)  # fmt: skip

# A name and what stands between it and its value, which `VALUES` takes from there on:
# NAME=value, NAME = "value", "name": "value", os.environ["NAME"] = 'value', name => value
ASSIGNED = re.compile(rf"{_NAME}(?:{_QUOTE}\]?[ \t]*={{1,3}}>?[ \t]*|{_QUOTE}:[ \t]*)")
# --api-key value, ['--api-key', 'value'], setenv NAME value, set -gx NAME value
FLAGGED = re.compile(rf"(?<![\w.-])--?(?P<name>[A-Za-z][\w.-]*){_QUOTE},?[ \t]+(?!--)")
SET = re.compile(r"\b(?:setenv|set(?:[ \t]+-[A-Za-z]+)+)[ \t]+(?P<name>[A-Za-z_][\w.-]*)[ \t]+")
# "name": "HF_TOKEN", "value": … as Kubernetes writes variables; PAIR_BEGINS and PAIR_ENDS where it is two lines
_IS = rf"{_QUOTE}[ \t]*[:=][ \t]*"
PAIRED = re.compile(rf"(?<![\w.-]){_QUOTE}name{_IS}{_QUOTE}(?P<name>[\w.-]+){_QUOTE}[ \t]*,[ \t]*{_QUOTE}value{_IS}")
PAIR_BEGINS = re.compile(rf"(?<![\w.-]){_QUOTE}name{_IS}{_QUOTE}(?P<name>[\w.-]+){_QUOTE}[ \t]*,?[ \t]*$")
PAIR_ENDS = re.compile(rf"^\W*value{_IS}")
# "Your access token: …", "the secret key is …"
SPOKEN = re.compile(
    r"(?i)\b(?P<name>(?:api|access|secret|auth|private|session|refresh|security|join)[ _-]?(?:key|token)s?)"
    rf"{_QUOTE}[ \t]*(?:\bis\b|[:=])[ \t]*"
)
BLOCK_BEGINS = re.compile(r"""^(?P<indent>\s*(?:-\s+)?)["']?(?P<name>[\w.-]+)["']?:[ \t]*[|>][+-]?\d?[ \t]*$""")
VALUES = re.compile(VALUE)
# A password may be a phrase: up to the next NAME=, or the end of the line.
PHRASES = re.compile(rf"{QUOTED}|\S.*?(?=[ \t]+[\w.-]+=|$)")
PHRASED = re.compile(r"(?i)pass(?:word|wd|phrase)|kennwort|passwort")

PEM_BEGINS = re.compile(r"-----BEGIN [^-]{0,40}PRIVATE KEY[^-]{0,20}-----")
PEM_ENDS = re.compile(r"-----END [^-]{0,60}-----")

# A line that has none of these, in lower case, holds no secret of the forms above.
TRIGGERS = (
    *("token", "key", "secret", "pass", "pwd", "auth", "cred", "cookie", "bearer", "basic", "private", "login", "curl"),
    *("://", "sig=", "sign=", "signature", "hf_", "api_org", "wandb", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("github_pat", "glpat-", "gldt-", "glrt-", "glsoat-", "glptt-", "glcbt-", "glft-", "glimt-", "glagent-"),
    *("akia", "asia", "abia", "acca", "xox", "xapp-", "slack", "eyj", "aiza", "ya29", "gocspx", "sk-", "sk_", "rk_"),
    *("nvapi", "dckr", "pypi-", "xai", "pplx", "npm_", "dop_v1", "doo_v1", "r8_", "gsk_", "lsv2", "dapi", "sg."),
    "kennwort",
)


_LOWER = bytes(range(256)).lower()
_NOT_ASCII = bytes(c for c in range(256) if not (32 <= c < 127 or c == 10))
_TRIGGERS = tuple((word, word.encode()) for word in TRIGGERS)


def present(data: bytes) -> tuple[str, ...]:
    """Those of the words that a block of lines has: a look at it all at once, so that its lines need few looks each."""
    if b"\x1b" in data:
        return TRIGGERS  # an escape sequence may stand within a word
    lower = data.translate(_LOWER, _NOT_ASCII)
    return tuple(word for word, raw in _TRIGGERS if raw in lower)


def may_hold(text: str, words: tuple[str, ...] = TRIGGERS) -> bool:
    """Whether a line has to be looked at."""
    lower = text.lower()
    return any(word in lower for word in words)
