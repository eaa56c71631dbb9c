"""Exceptions of a rank that only their traceback tells, and what torch's transports raise when a peer is lost."""

from __future__ import annotations

from dataclasses import replace

from .row import CASCADE, ROOT, Row, Scope, table
from .vocabulary import RELEASES

ACCUSES = "rank-accuses"
GONE = "peer-gone"
AWAITED = "peer-awaited"
_LAST_FRAME = r'(?s)File "[^"\n]*%s", line (?!.*\n  File ")'
# The innermost frame; one of the four innermost.
_LAST_FOUR_FRAMES = r'(?s)File "(?=[^"\n]*%s)[^"\n]*", line (?!(?:.*?\n  File "){4})'
# The innermost frame, in a function that reads a configuration.
_WHILE_CONFIGURING = (
    r'(?s)File "[^"\n]*%s[^"\n]*", line \d+, in '
    r'(?:__init__|initialize|_configure\w*|_do_\w*check|compute_elastic_config)\b(?!.*\n  File ")'
)
_LAST_SIX_FRAMES = r'(?s)File "(?=[^"\n]*%s)[^"\n]*", line (?!(?:.*?\n  File "){6})'
_REFUSALS = "ValueError|AssertionError|TypeError|KeyError"
ROWS = tuple(replace(row, scope=Scope.EXCEPTION) for row in (
    Row("loader-handover", "dataloader-worker-killed", ROOT,
        "torch multiprocessing/reductions.py, CPython multiprocessing/resource_sharer.py", "Error",
        r"^\S*(?:ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError|FileNotFoundError)\b",
        confidence=0.8,
        means="a worker of its DataLoader was lost between handing over a tensor and its file descriptor",
        trace=r"(?s)torch/utils/data/dataloader\.py.{0,3000}rebuild_storage_fd"),
    Row("checkpoint-short", "checkpoint-unreadable", ROOT,
        "torch serialization.py _open_zipfile_reader, inline_container.cc the directory at a zip's end is read before "
        "its beginning (errno 22 EINVAL)", "rrno 22", r"\[Errno 22\]",
        means="the checkpoint file is cut short", trace=r"PyTorchFileReader\("),
    Row("checkpoint-empty", "checkpoint-unreadable", ROOT, "torch serialization.py (an empty file)", "EOFError",
        r"^\S*EOFError\b", means="the checkpoint file is empty or cut off", trace=r"torch/serialization\.py"),
    Row("generator-index", "invalid-device-ordinal", ROOT, "torch cuda/random.py default_generators", "IndexError",
        r"^\S*IndexError\b", confidence=0.8, means="torch has no such device: the process sees fewer than it counts",
        trace=_LAST_FRAME % r"/torch/(?:cuda|npu|xpu|mtia)/random\.py"),
    # Nearly all of accelerate's own ValueErrors refuse a configuration, or objects that do not fit it.
    Row("accelerate-refuses", "accelerate-config", ROOT,
        "accelerate accelerator.py, state.py, utils/dataclasses.py, utils/launch.py, utils/fsdp_utils.py", "ValueError",
        r"^\S*ValueError\b", confidence=0.75, means="accelerate refuses its configuration, or what it does not fit",
        trace=_LAST_FRAME % r"/accelerate/(?:accelerator|state|utils/(?:dataclasses|launch|fsdp_utils))\.py",
        fix="Change what the message names, in the program or with `accelerate config`. `accelerate env` shows what "
            "is read"),
    Row("trl-server", "program-exception", ROOT, "trl extras/vllm_client.py: paths of its server", "404",
        "Request failed: 404", confidence=0.85, means="the server that answers is not trl's", trace=r"vllm_client\.py",
        fix="Start the server with `trl vllm-serve --model MODEL`. A plain vLLM server has none of these paths"),
    Row("launcher-variable", "bad-launch-arguments", ROOT, "DeepSpeed launcher/multinode_runner.py",
        "KeyError", "KeyError: '[A-Z][A-Z_0-9]+'", confidence=0.8,
        means="a variable that this release of DeepSpeed's launcher changes is not set",
        trace=_LAST_FOUR_FRAMES % r"deepspeed/launcher/(?:runner|multinode_runner|launch)",
        fix="Run `export {variable}=` before the start, or install a newer DeepSpeed"),
    Row("hostfile-refused", "bad-launch-arguments", ROOT, "DeepSpeed launcher/runner.py",
        "ostfile|slots", "[Hh]ostfile|slots", means="DeepSpeed's launcher refuses its hostfile",
        trace=_LAST_FOUR_FRAMES % r"deepspeed/launcher/(?:runner|launch)",
        fix="Write one line a node into the hostfile: `NAME slots=8`, with a name of ~/.ssh/config or an "
            "address, and each once"),
    *(
        Row(id_, cause, role=ROOT, source=source, literals=_REFUSALS,
            pattern=r"^\S*(?:Value|Assertion|Type|Key)Error\b", confidence=0.75, means=means,
            trace=_LAST_FOUR_FRAMES % path)
        for id_, cause, source, path, means in (
            ("deepspeed-refuses", "deepspeed-config", "DeepSpeed runtime/config.py, runtime/zero/config.py",
             r"deepspeed/runtime/(?:zero/)?config", "DeepSpeed refuses its configuration"),
            ("accelerate-command", "accelerate-config", "accelerate commands/launch.py, commands/config",
             r"accelerate/commands/", "accelerate refuses its configuration"),
            ("torchrun-refuses", "bad-launch-arguments", "torch distributed/run.py, distributed/argparse_util.py",
             r"torch/distributed/(?:run\.py|argparse_util)", "torchrun refuses its arguments"),
            ("deepspeed-launcher", "bad-launch-arguments", "DeepSpeed launcher/runner.py, launcher/launch.py",
             r"deepspeed/launcher/(?:runner|launch)", "DeepSpeed's launcher refuses its arguments or its hostfile"),
        )
    ),
    # Megatron arguments.py, transformers hf_argparser.py, vLLM and SGLang server_args.py name these functions so.
    Row("arguments-refused", "bad-launch-arguments", role=ROOT, source="the program's own check of its arguments",
        literals=_REFUSALS,
        pattern=r"^\S*(?:Value|Assertion|Type|Key)Error\b", confidence=0.6, means="the program refuses its arguments",
        trace=r"(?s), in (?:from_cli_args|(?:validate|check|verify)_args?|parse_args_into_dataclasses)\b"
              r"(?!(?:.*?\n  File \"){4})"),
    Row("deepspeed-combination", "deepspeed-config", ROOT,
        "DeepSpeed __init__.py, runtime/engine.py, runtime/zero/stage3.py, elasticity/elasticity.py",
        "AssertionError|NotImplementedError|ValueError", r"^\S*(?:Assertion|NotImplemented|Value)Error\b",
        confidence=0.75, means="DeepSpeed does not take this combination of settings",
        trace=_WHILE_CONFIGURING % r"/deepspeed/(?:__init__|runtime/engine|runtime/zero/stage|elasticity/)"),
    Row("config-json", "deepspeed-config", ROOT, "DeepSpeed runtime/config.py, accelerate utils/deepspeed.py",
        "JSONDecodeError", r"^\S*JSONDecodeError\b", confidence=0.85,
        means="DeepSpeed's configuration is not valid JSON",
        trace=_LAST_SIX_FRAMES % r"(?:deepspeed/runtime/config|accelerate/utils/deepspeed)"),
    Row("rendezvous-refuses", "bad-launch-arguments", ROOT,
        "torch distributed/elastic/rendezvous, elastic/multiprocessing/api.py",
        "ValueError", r"^\S*ValueError\b", confidence=0.75, means="torchrun refuses its arguments",
        trace=_LAST_FRAME % r"/torch/distributed/elastic/(?:rendezvous/\w*|multiprocessing/api)\.py"),
    # torch calls a module's forward with what the program gave it, so there the program may be wrong.
    Row("library-argument", "environment-mismatch", ROOT, "CPython: Python/ceval.c, Objects/call.c",
        "unexpected keyword argument|required positional argument",
        r"TypeError: .* (?:got an unexpected keyword argument|missing \d+ required positional arguments?: )",
        confidence=0.65, means="a library calls it so, and the installed versions of the two do not fit",
        trace=_LAST_FRAME % r"/(?:(?:site|dist)-packages/(?!torch/nn/modules/module\.py)|megatron/core/)[^\"\n]*",
        fix=RELEASES),
))  # fmt: skip
LAST = (
    Row("import-failed", "missing-module", ROOT, "CPython importlib",
        "ImportError", r"^\S*ImportError\b", scope=Scope.EXCEPTION),
    # A plain OS error is not among them: "Connection reset by peer" from a database is the program's own affair.
    *table(
        "gloo transport/tcp/pair.cc, torch TCPStore.cpp, socket.cpp, reducer.cpp, NCCL socket.cc", CASCADE,
        "peer-died",
        [(ACCUSES, "DDP expects same model|appears not to match s|monitoredBarrier",
         r"DDP expects same model across all ranks|appears not to match (?:sizes|strides) of the same param in process|"
         r"failed to pass monitoredBarrier|successfully reached monitoredBarrier, but received errors"),
        (AWAITED, "Timed out waiting|Watchdog caught|client socket has|clients joined|wait timeout"
         "|DistStoreError|Socket Timeout",
         r"Timed out waiting \d+ms for (?:recv|send)|Watchdog caught collective operation timeout|"
         r"client socket has (?:timed out|failed to connect)|"
         r"\d/\d{1,7} clients joined|wait timeout after \d+ms|DistStoreError|Socket Timeout"),
        (GONE, "gloo/transport|onnection closed|pair closure|connectFullMesh|got 0 bytes|recvValue|sendBytes|recvBytes"
         "|sendVector|recvVector|ncclRemoteError|communicator was aborted|remote process exited|DistNetworkError",
         r"gloo/transport.{0,150}(?:Connection (?:closed by peer|reset|refused)|Broken pipe|Read error|Write error)|"
         r"Connection closed by (?:peer \[|remote peer)|Application timeout caused pair closure|"
         r"connectFullMesh failed|Failed to recv, got 0 bytes|"
         r"(?:recvValue|sendBytes|recvBytes|sendVector|recvVector) failed|ncclRemoteError|"
         r"NCCL communicator was aborted|remote process exited or there was a network error|DistNetworkError")],
        scope=Scope.EXCEPTION,
    ),
)  # fmt: skip
