"""Lines that look like faults and mean nothing; they come first so that no other row takes them."""

from __future__ import annotations

from .row import HARMLESS, table

ROWS = (
    *table(
        "torch socket.cpp, ProcessGroupNCCL.cpp, distributed/run.py", HARMLESS, "",
        [("errno-97", "client socket cannot be initialized|"
         "Address family not supported", r"client socket cannot be initialized to connect"),
        ("socket-name", "hostname of the client socket", r"hostname of the client socket cannot be retrieved"),
        ("group-not-destroyed", "destroy_process_group|has NOT been destroyed",
         r"destroy_process_group\(\) was not called|process group has NOT been destroyed"),
        ("no-error-file", "error_file|error file|To enable traceback", r"error_file *: <N/A>|[Nn]o error file defined"
         r"|To enable traceback see"),
        # libkineto_api.cpp: torch's profiler begun in another thread, as `allranks profile` does
        ("kineto-thread", "External init callback", r"External init callback must run in same thread"),
        ("guessing-device", "Guessing device ID|devices used by this process", r"Guessing device ID|devices used by "
         r"this process are currently unknown"),
        ("dump-hint", "debug info", r"preparing to dump debug info|dump the debug info\. *Include"),
        ("corrupted-hint", "To avoid data inconsistency|"
         "operations have failed or timed out|taking the entire process down",
         r"Some NCCL operations have failed or timed out|To avoid data inconsistency"),
        ("stack-hint", "Stack trace of the failed collective", r"Stack trace of the failed collective not found"),
        ("kernel-async", "might be asynchronously reported", r"kernel errors might be asynchronously reported")],
    ),
    *table(
        "NCCL net.cc, plugin.cc, transport/p2p.cc, ibvwrap.cc (INFO)", HARMLESS, "",
        [("no-plugin", "ould not find: libnccl|dlerror|lugin",
         r"(?i)^(?!.*version `).*(?:no plugin found|Could not find: libnccl|dlerror=libnccl|"
         r"Plugin load \(lib\S+\) returned \d"
         r"|Failed to find ncclNetPlugin|NET/Plugin: Failed to find|TUNER/Plugin: (?:Could|Failed))"),
        ("nccl-address", "Bootstrap", r"NCCL INFO Bootstrap ?: Using (?P<interface>[\w.-]+):(?P<address>[\d.]+)<\d+>"),
        ("no-verbs", "libibverbs", r"Failed to open libibverbs|"
         r"libibverbs: Warning: (?:couldn't (?:load driver|open config)|no userspace device-specific driver)"),
        # Its service thread says so of each rank of the host that ends, however it ends.
        ("service-closed", "closed by localRank", r"NCCL INFO \[Service thread\] Connection closed by localRank"),
        ("no-p2p", "enable P2P", r"NCCL INFO Could not enable P2P"),
        ("no-nvls", "NVLS not|NVLS disabled|NVLS multicast support is not",
         r"NCCL INFO .*NVLS (?:not|disabled|multicast support is not)")],
    ),
    *table(
        "TensorFlow, torchvision, wandb, urllib3, git messages of libraries beside the training", HARMLESS, "",
        [("cuda-factory", "nable to register|TensorRT|dynamic library", r"Could not load dynamic library|"
         r"Unable to register cu\w+ factory|Could not find TensorRT"),
        ("image-extension", "Failed to load image", r"Failed to load image Python extension"),
        ("no-triton", "Error caught was|matching Triton|/.triton/",
         r"Error caught was: No module named|matching Triton is not available|^df: \S*/\.triton/"),
        ("wandb", "wandb", r"wandb: (?:ERROR|WARNING|Network error|W )"),
        ("retrying", "etrying", r"(?i)\bretrying (?:in|again|after|\(Retry)"),
        ("exception-ignored", "Exception ignored", r"Exception ignored in")],
    ),
    *table(
        "bitsandbytes cuda_setup (a hint), Slurm job_mgr.c at its first start, pyxis after a failed import", HARMLESS,
        "",
        [("cuda-hint", "If you get `CUDA error", r"If you get `CUDA error"),
        ("state-file", "state file", r"Could not open \w+ state file"),
        ("squashfs", "could not remove squashfs", r"could not remove squashfs")],
    ),
    *table(
        "OpenSSH, bash, systemd", HARMLESS, "",
        # readpass.c: ssh has no terminal to ask at. What it wanted to ask stands in the next line.
        [("askpass", "ssh_askpass", r"ssh_askpass: (?:exec|fork|pipe|dup2)\b"),
        ("identity-file", "Identity file", r"Identity file \S+ not accessible"),
        ("known-hosts-added", "Permanently added", r"Warning: Permanently added"),
        ("preload", "LD_PRELOAD", r"from LD_PRELOAD cannot be preloaded"),
        ("no-tty", "terminal process group|job control", r"cannot set terminal process group|no job control in this"),
        ("x11", "X11 forwarding", r"X11 forwarding request failed")],
    ),
)  # fmt: skip
