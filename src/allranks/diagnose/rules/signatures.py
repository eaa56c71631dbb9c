"""Texts of exceptions → cause, one row each (pure).

A row is tried on `Type: text` of an exception; the first row that fits gives the cause. `source` says
where the text comes from. `shared`: the text concerns ranks as a whole, so it blames none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

ENOUGH = 4096  # characters of a text that are looked at; patterns are bounded too, so that no log is slow to read


@dataclass(frozen=True)
class Signature:
    """One row. `types`: names of exception types that are enough by themselves; `trace`: must be in the traceback.

    `means` is said where the exception's own text is no help.
    """

    cause: str
    source: str
    pattern: str = r"(?!)"
    types: tuple[str, ...] = ()
    trace: str = ""
    shared: bool = False
    confidence: float = 0.9
    means: str = ""

    @cached_property
    def _text(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.DOTALL)

    @cached_property
    def _trace(self) -> re.Pattern[str]:
        return re.compile(self.trace)

    def fits(self, kind: str, text: str, traceback: str) -> bool:
        """True where the exception is one of this row's."""
        if self.trace and not self._trace.search(traceback):
            return False
        name = kind.rsplit(".", 1)[-1]
        return name in self.types or self._text.search(f"{name}: {text[:ENOUGH]}") is not None


SHAPES = "op.preamble.length <= op.nbytes"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        "port-in-use", "torch: TCPStoreLibUvBackend.cpp, socket.cpp; errno 98",
        r"EADDRINUSE|[Aa]ddress already in use",
    ),
    Signature(
        "no-interface", "gloo: transport/tcp/device.cc; NCCL: bootstrap.cc",
        r"Unable to find address for: |no socket interface found",
    ),
    Signature(
        "name-resolution", "torch: socket.cpp (gai error); getaddrinfo(3)",
        r"cannot be retrieved \(gai error|Name or service not known|Temporary failure in name resolution",
        ("gaierror",),
    ),
    Signature(
        "collective-mismatch", "torch: ProcessGroupWrapper.cpp",
        r"Detected mismatch between collectives.{0,3000}?aspects:\s*(Sequence number|Op type)", shared=True,
    ),
    Signature(
        "collective-shape-mismatch", "torch: ProcessGroupWrapper.cpp; gloo: transport/tcp/pair.cc",
        r"Detected mismatch between collectives|" + re.escape(SHAPES), shared=True, confidence=0.85,
    ),
    Signature(
        "unused-parameters-ddp", "torch: reducer.cpp",
        r"Expected to have finished reduction in the prior iteration", shared=True,
    ),
    Signature(
        "duplicate-gpu", "NCCL: init.cc; torch: ProcessGroupNCCL.cpp",
        r"Duplicate GPU detected|Multiple Ranks are using the same GPU",
    ),
    Signature(
        "cuda-out-of-memory", "torch: c10/cuda/CUDACachingAllocator.cpp",
        r"(CUDA|HIP) out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY", ("OutOfMemoryError",),
    ),
    Signature(
        "ecc-error", "CUDA: cudaErrorECCUncorrectable",
        r"uncorrectable ECC error",
    ),
    Signature(
        "cuda-kernel-fault", "CUDA: cudaErrorAssert, cudaErrorIllegalAddress",
        r"device-side assert triggered|illegal memory access was encountered",
    ),
    Signature(
        "invalid-device-ordinal", "CUDA: cudaErrorInvalidDevice",
        r"invalid device ordinal",
    ),
    Signature(
        "driver-version-mismatch", "CUDA: cudaErrorInsufficientDriver; torch: cuda/__init__.py",
        r"driver version is insufficient|NVIDIA driver on your system is too old",
    ),
    Signature(
        "cuda-device-unavailable", "torch: cuda/__init__.py; CUDA: cudaErrorDevicesUnavailable",
        r"Found no NVIDIA driver|No CUDA GPUs are available|not compiled with CUDA enabled|busy or unavailable",
    ),
    Signature(
        "memlock-limit", "NCCL: ibvwrap.cc",
        r"ibv_reg_mr.{0,200}Cannot allocate",
    ),
    Signature(
        "dataloader-worker-killed", "torch: utils/data/dataloader.py, csrc/DataLoader.cpp",
        r"DataLoader worker \(pid.{0,200}(exited unexpectedly|is killed by signal)",
    ),
    Signature(  # seen: the worker dies between handing over a tensor and its file descriptor
        "dataloader-worker-killed", "torch: multiprocessing/reductions.py; CPython multiprocessing/resource_sharer.py",
        types=("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError",
                        "FileNotFoundError"),
        trace=r"(?s)torch/utils/data/dataloader\.py.{0,3000}rebuild_storage_fd", confidence=0.8,
        means="a worker of its DataLoader was gone",
    ),
    Signature(
        "shm-too-small", "torch: MapAllocator.cpp; NCCL: shmutils.cc",
        r"failed to extend /dev/shm|(/dev/shm/|</?torch_\d).{0,200}(No space left|Cannot allocate)",
    ),
    Signature(
        "disk-full", "errno 28 ENOSPC, 122 EDQUOT",
        r"No space left on device|\[Errno 28\]|\[Errno 122\]|Disk quota exceeded",
    ),
    Signature(
        "disk-full", "torch: caffe2/serialize/inline_container.cc (a write fell short)",
        r"inline_container\.cc:\d+\] \. (unexpected pos|PytorchStreamWriter failed)", confidence=0.75,
        means="a write to the checkpoint fell short",
    ),
    Signature(
        "too-many-open-files", "errno 24 EMFILE; torch: multiprocessing/reductions.py (ancdata)",
        r"Too many open files|\[Errno 24\]|received \d+ items of ancdata",
    ),
    Signature(
        "checkpoint-unreadable", "torch: inline_container.cc, nn/modules/module.py, serialization.py; pickle",
        r"PytorchStreamReader|loading state_dict|size mismatch for |invalid load key|Weights only load failed|"
        r"pickle data was truncated|Invalid magic number; corrupt file",
        ("UnpicklingError", "SafetensorError"),
    ),
    Signature(
        "checkpoint-unreadable", "torch: serialization.py _open_zipfile_reader; caffe2/serialize/"
        "inline_container.cc: the directory at a zip's end is looked for before its beginning (errno 22 EINVAL)",
        r"\[Errno 22\]", trace=r"PyTorchFileReader\(", means="the checkpoint file is cut short",
    ),
    Signature(
        "checkpoint-unreadable", "torch: serialization.py (an empty file)",
        types=("EOFError",), trace=r"torch/serialization\.py",
        means="the checkpoint file is empty or cut off",
    ),
    Signature(
        "host-out-of-memory", "CPython: MemoryError; torch: c10/core/CPUAllocator.cpp; errno 12 ENOMEM",
        r"DefaultCPUAllocator: (can't|not enough)|\[Errno 12\]", ("MemoryError",), confidence=0.75,
    ),
    Signature(
        "permission-denied", "errno 13 EACCES, 1 EPERM",
        r"\[Errno 13\]|Permission denied", ("PermissionError",),
    ),
    Signature(
        "missing-file", "errno 2 ENOENT",
        r"\[Errno 2\]|No such file or directory", ("FileNotFoundError", "NotADirectoryError"),
    ),
    Signature(
        "missing-module", "CPython: importlib",
        r"No module named |No package metadata was found for |requires the \S{1,100} library but it was not found",
        ("ModuleNotFoundError", "ImportError", "PackageNotFoundError", "DistributionNotFound"),
    ),
)  # fmt: skip

# A peer that went away, and one that did not come: what torch's own transports say. Plain OS errors are not
# among them: "Connection reset by peer" from a database is the program's own affair.
_GONE = re.compile(
    r"gloo/transport[^\n]{0,150}(Connection (closed by peer|reset|refused)|Broken pipe|Read error|Write error)"
    r"|Connection closed by peer \[|Application timeout caused pair closure|connectFullMesh failed"
    r"|Failed to recv, got 0 bytes|(recvValue|sendBytes|recvBytes|sendVector|recvVector) failed"
    r"|ncclRemoteError|NCCL communicator was aborted|remote process exited or there was a network error"
    r"|Connection closed by remote peer|DistNetworkError",
    re.DOTALL,
)
_WAITED = re.compile(
    r"Timed out waiting \d+ms for (recv|send)|Watchdog caught collective operation timeout"
    r"|failed to pass monitoredBarrier|client socket has (timed out|failed to connect)"
    r"|\d/\d{1,7} clients joined|wait timeout after \d+ms|DistStoreError|Socket Timeout",
    re.DOTALL,
)


def signature_of(kind: str, text: str, traceback: str = "") -> Signature | None:
    """The first row that fits an exception."""
    return next((row for row in SIGNATURES if row.fits(kind, text, traceback)), None)


def lost_peer(kind: str, text: str) -> str | None:
    """Says "waited" or "gone" where torch's transports speak of a peer, else None."""
    whole = f"{kind.rsplit('.', 1)[-1]}: {text[:ENOUGH]}"
    if _WAITED.search(whole):
        return "waited"
    return "gone" if _GONE.search(whole) else None
