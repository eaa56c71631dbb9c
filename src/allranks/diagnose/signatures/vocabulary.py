"""What an exception's own words mean where no row knows its text: tried last, on logs alone.

Libraries word one thing alike: that a version, a device or an option does not fit, that memory or devices do not
suffice. A row here has a subject and what is said of it, in either order. What it says is never surer than that a
program failed by itself.
"""

from __future__ import annotations

from .row import WEAK, Row, Scope

_DEVICE = (
    r"(?:[GNXHT]PUs?|CUDA|ROCm|HIP|Ascend|Gaudi|sm_?\d\d|gfx\d|compute capability|devices?|platforms?|hardware|backend|"
    r"arch(?:itecture)?s?)"
)
_UNFIT = (
    r"(?:not (?:currently |yet )?(?:supported|implemented|available|compiled)|unsupported|"
    r"(?:does|do)(?: not|n't) (?:currently )?support|no kernel|only support(?:s|ed)?|requires?)"
)
_VERSION = r"\bversions?\b"
_APART = (
    r"(?:incompatib|not compatible|mismatch|too (?:old|new|low)|n[o']t support|n[o']t match|unsupported|at least|"
    r"older than|newer than|[><]=)"
)
_TOO_FEW = r"(?:not enough|insufficient|fewer than|less than|exceeds?|no available|cannot fit|can ?not be satisfied)"
_UNITS = r"(?:[GNXHT]PUs?|accelerators?|devices?|nodes?|bundles?|resources?)"
_DEVICE_MEMORY = r"(?:[GNXHT]PU|CUDA|HBM|VRAM|KV|cache|device)"
_SAVED = r"(?:checkpoints?|ckpt|state[_ ]dict|weights?|shards?|safetensors)"
_FILE = r"\b(?:files?|checkpoints?|folder|directory|path)\b"
_OPTION = r"(?:--[a-z][\w-]+|`[\w.-]+`|'(?!NoneType)[\w.-]+'|\b(?!torch\.)[a-z]+(?:[_.](?!so\b)[a-z0-9]+)+\b)"
_RULED = (
    r"(?:must|should|cannot|can't|can not|needs? to|has to|have to|required|not allowed|exclusive|not equal|divisible|"
    r"at least|invalid|unknown|not set|specif(?:y|ied)|provide|conflict)"
)
_REFUSAL = r"^(?:[\w.]+\.)?(?:Value|Assertion|Key|\w*Config\w*|Validation|Argument|NotImplemented)(?:Error|Exception): "
_GETATTR = r'(?:\n?  File "[^"\n]{0,300}/torch/nn/modules/module\.py", line \d{0,9}, in __getattr__)?\Z'
_OF_LIBRARY = (
    r"\A(?:" + _GETATTR + r")|/(?:(?:site|dist)-packages|vllm|sglang|megatron|deepspeed|verl|mindspeed|slime|swift|"
    r"nemo)/"
    r"(?!torch/)[^\"\n]{0,300}\", line \d{0,9}, in [^\n]{0,100}" + _GETATTR
)
"""The innermost frame is a library's and not torch's, or an excerpt has left the traceback out."""
SAME_MODEL = (
    "Load it into a model of the same configuration as the one that saved it: sizes, vocabulary, parallel "
    "sizes. Keys that begin with `module.` are DDP's. Save model.module.state_dict(), or strip them"
)
RELEASES = (
    "Install the version of {package} that the program was written for, on every node: its requirements name it. "
    "`python -m pip install '{package}==VERSION'`"
)
DEVICES = (
    "Compare what the message asks for with what there is: {given}. Ask for no more, end what holds the others, or add "
    "the nodes that are absent"
)
OPTIONS = "Give the options that the message names values that fit: it says what must hold between them"


def _words(
    id_: str, cause: str, pattern: str, confidence: float, means: str = "", fix: str = "", *, trace: str = ""
) -> Row:
    return Row(id_, cause, WEAK, "any library's words for it", "", f"(?i){pattern}", confidence=confidence,
                     means=means, scope=Scope.EXCEPTION, trace=trace, fix=fix)  # fmt: skip


def _pair(one: str, other: str, between: str = "[^.;!]{0,80}?") -> str:
    """Match both in either order, within a sentence."""
    return f"{one}{between}{other}|{other}{between}{one}"


ROWS = (
    _words("words-wrapper", "unknown",
            r"\b(?:worker|engine|server|process|actor|job|child|scheduler|replica|subprocess|task)\w*\b"
            r".{0,60}\b(?:failed|died|is dead|crashed|exited|terminated|was killed)\b|"
            r"\bsee (?:the )?(?:above|logs?|root cause|stack trace)|\bchannel closed\b|: System error\b", 0.3,
            "it carries another process's failure, whose own words are not here"),
    _words("words-internal", "unknown",
            r"\binternal (?:error|assert)|\bINTERNAL:|RET_CHECK|unknown error|something went wrong|generic failure|"
            r"unexpected (?:error|failure)|: invalid (?:argument|value)$|^\S+: \w*(?:Status|STATUS|_E_)\w*$", 0.3,
            "the library met what it does not expect, and does not say why"),
    _words("words-device-memory", "cuda-out-of-memory",
            rf"\b{_DEVICE_MEMORY}\b.{{0,80}}?\b(?:memory|blocks)\b.{{0,40}}?(?:exhausted|insufficient|not enough)|"
            rf"(?:not enough|insufficient|out of|no available|exhausted)\b.{{0,40}}?\b{_DEVICE_MEMORY}\b"
            r".{0,40}?\b(?:memory|blocks)", 0.6),
    _words("words-version", "environment-mismatch",
            _pair(_VERSION, _APART, ".{0,60}?") + r"|\b(?:please |must |need to |try )(?:re)?(?:install|upgrade|update|"
            r"downgrade|rebuild)\b|\bpip3? install\b|\b(?:has|have|was) not (?:been )?(?:built|compiled)\b|"
            r"^\S*Pydantic(?:User|Import)Error|\bdescriptors cannot\b|backend extension|\bAVX\b|"
            r"\bextension\b.{0,60}not found|\bSetup failed\b",
            0.6,
            "two installed packages do not fit each other"),
    _words("words-model", "environment-mismatch",
            r"\b(?:unrecognized|unknown|unsupported) (?:model|configuration class|architecture|processor|quantization)|"
            r"\bmodel (?:type|architecture)s?\b.{0,80}\b(?:not supported|unknown|unrecognized)", 0.6,
            "this version of the library does not know the model"),
    _words("words-hardware", "environment-mismatch", _pair(rf"\b{_DEVICE}\b", _UNFIT), 0.6,
            "what is installed does not take this device or backend"),
    _words("words-devices", "cuda-device-unavailable", _pair(rf"\b{_UNITS}\b", _TOO_FEW), 0.6,
            "the program wants more devices or nodes than it is given", DEVICES),
    _words("words-checkpoint", "checkpoint-unreadable",
            r"\bcheckpoint\b.{0,40}\b(?:saved with|with (?:\w+ ){0,3}size)\b|" +
            _pair(rf"\b{_SAVED}\b", r"(?:mismatch|not equal|n[o']t match|corrupt|incomplete|truncated|"
                                    r"different (?:number|size|world))"), 0.6, "", SAME_MODEL),
    _words("words-file", "missing-file",
            rf"^(?:[\w.]*(?:Files?|Dataset|Path)NotFound|\S*(?:Value|Assertion|OS|Runtime))(?:Error|Exception): "
            rf".{{0,120}}?"
            rf"(?:\bno (?:available |valid |supported |\(supported\) )?(?:data )?{_FILE}|\b(?:unable|failed|could "
            rf"?n[o']t|cannot|"
            rf"can't)(?: to)? (?:find|locate) .{{0,40}}{_FILE}|{_FILE}.{{0,80}}\b(?:not found|(?:does(?: not|n't)|"
            rf"not) exist))", 0.55,
            "", "Run `ls -ld {path}` on every node. Correct the path, or bring what is missing to all nodes"),
    _words("words-import", "missing-module",
            r"^\S*ImportError: |\b(?:must|to|should) be installed\b|\bnot found\b.{0,60}\binstalled\b", 0.55,
            "a package or a program that it needs is not there"),
    _words("words-option", "bad-launch-arguments", rf"{_REFUSAL}.{{0,120}}?(?:{_pair(_OPTION, _RULED)})", 0.55,
            "the program refuses an option", OPTIONS),
    _words("words-config", "bad-launch-arguments", r"^(?:[\w.]+\.)?(?:\w*Config\w*|Usage)(?:Error|Exception)\b", 0.55,
            "the program refuses its configuration", OPTIONS),
    _words("words-combination", "bad-launch-arguments",
            rf"{_REFUSAL}.{{0,160}}?(?:\b{_UNFIT}\b|\bonly .{{0,40}}\b(?:supported|compatible)\b|"
            r"\b(?:not|in)[ -]?compatible\b|"
            r"\bexclusive\b|\bconflict|\bdivisible\b)", 0.55,
            "the library does not take what its options ask for together", OPTIONS, trace=_OF_LIBRARY),
    _words("words-address", "name-resolution",
        r"(?:unable|failed|could not|cannot)\b.{0,20}\b(?:get|resolve|look up)\b.{0,20}\b(?:host|address|name)", 0.55),
    _words("words-connect", "master-unreachable",
            r"(?:unable|failed|could not|cannot|can't)\b.{0,20}\b(?:connect|reach)\b(?:.{0,40}?\bto "
            r"(?P<peer>[\w.-]{1,80})[: ](?:at )?(?:port )?(?P<port>\d{2,5})\b)?", 0.5),
    _words("words-late", "unknown", r"\btimed?[ -]?out\b|\bdeadline exceeded", 0.3,
            "it waited for something that did not come in time, and that one's own log must say why"),
)  # fmt: skip
OF_TRACE = (
    Row("library-assertion", "unknown", WEAK, "CPython: an assertion without words, of a library's own", literals="",
        pattern=r"^\S*AssertionError(?::\s*)?$", confidence=0.3,
        means="a library found what it does not expect, and does not say why", scope=Scope.EXCEPTION,
        trace=r"/(?:(?:site|dist)-packages|vllm|sglang|megatron|deepspeed|verl|mindspeed)/[^\"\n]{0,300}\", "
              r"line \d{0,9}, in [^\n]{0,100}\Z"),
    Row("command-refuses", "bad-launch-arguments", WEAK, "any launcher's own command line", literals="",
        pattern=r"^\S*(?:Key|Value|Attribute|Index)Error: ", confidence=0.55,
        means="the launcher does not know a word of its command line, or lacks one", scope=Scope.EXCEPTION,
        fix="Compare the command with --help of this version: a command or an option of another release is not known. "
            "Then `python -m pip install '{package}==VERSION'`",
        trace=r"/(?:site|dist)-packages/\w+/(?:cli|commands|cmd)/[^\"\n]{0,300}\", line \d{0,9}, in [^\n]{0,100}\Z"),
    Row("library-attribute", "environment-mismatch", WEAK, "CPython Objects/object.c, of a library's class",
        literals="", pattern=r"^\S*AttributeError: '(?!NoneType)[A-Z]\w+' object has no attribute|"
                             r"^\S*AttributeError: type object '[A-Z]\w+' has no attribute", confidence=0.6,
        means="a library asks another one for what its installed version has not", scope=Scope.EXCEPTION, fix=RELEASES,
        trace=_OF_LIBRARY),
    Row("library-signature", "environment-mismatch", WEAK, "CPython Objects/call.c: a method whose caller is not shown",
        literals="TypeError: ",
        pattern=r"TypeError: [A-Z]\w+\.\w+\(\) (?:got an unexpected keyword argument|missing \d+ required positional)",
        confidence=0.6, means="in most cases a library calls it so, and the installed versions of the two do not fit",
        scope=Scope.EXCEPTION, fix=RELEASES, trace=r"\A\Z"),
    Row("library-model", "environment-mismatch", WEAK, "transformers models/auto, vLLM and SGLang model loaders",
        literals="KeyError: ", pattern=r"^\S*KeyError: ", confidence=0.6,
        means="this version of the library does not know the model, or names its weights otherwise",
        scope=Scope.EXCEPTION, fix=RELEASES,
        trace=r"/(?:transformers/models/auto/[^\"\n]{0,200}\", line \d{0,9}, in [^\n]{0,100}|"
              r"(?:vllm|sglang)/[^\"\n]{0,200}\", line \d{0,9}, in load_\w{0,30})\Z"),
)  # fmt: skip
