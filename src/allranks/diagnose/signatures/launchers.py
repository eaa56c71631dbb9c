"""Launchers' last words: how the processes that they started ended, and the words that forbid to call a log calm.

A row of the rule `exit-code` tells of one process. Its groups are `code` (below 0 a signal, as Python counts it),
`signal` (a number) or `name` (SIGKILL), and `rank`, `local`, `node` and `pid` where the line tells them.
"""

from __future__ import annotations

from .row import CASCADE, ROOT, SYMPTOM, WEAK, Row, Sign

DETACHED = (
    "Start it where closing a terminal ends nothing: in tmux, under `setsid`, with `allranks run --detach`, or as a "
    "job of the scheduler"
)


def _end(id_: str, source: str, literals: str, pattern: str, role: Sign = WEAK) -> Row:
    return Row(id_, "unknown", role, source, literals, pattern, rule="exit-code")


ROWS = (
    # torch takes SIGHUP for itself (PContext.start), so nohup's choice to ignore it does not last.
    Row("hangup", "rank-killed", SYMPTOM, "torch elastic/multiprocessing/api.py (SIGHUP)",
        "death signal|got signal|closing signal SIGHUP",
        r"Received (?:1|SIGHUP|Signals\.SIGHUP) death signal|got signal: 1\b|closing signal SIGHUP", confidence=0.6,
        means="SIGHUP: the terminal or the ssh session that started the launcher was closed, and torch's launcher "
              "ends then, even under nohup", fix=DETACHED),
    Row("death", "rank-killed", SYMPTOM, "torch elastic/agent/server/api.py, multiprocessing/api.py",
        "death signal|got signal", r"Received (?P<signal>\S+) death signal|got signal: (?P<number>\d+)",
        confidence=0.45, means="a scheduler, a service or a person ended the launcher", also="slurm-cancelled"),
    _end("agent-exit", "torch elastic/multiprocessing/api.py, errors/__init__.py, DeepSpeed launcher/launch.py",
         "exitcode|exits with return code",
         r"\(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)|"
         r"exitcode *: (?P<code2>-?\d+)(?: *\(pid: (?P<pid2>\d+)\))?|exits with return code = (?P<code3>-?\d+)"),
    _end("agent-rank", "torch elastic/multiprocessing/errors/__init__.py", "local_rank:",
         r"rank *: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)|^rank (?P<rank2>\d+) \(local_rank: (?P<local2>\d+)\)",
         CASCADE),
    _end("agent-host", "torch elastic/multiprocessing/errors/__init__.py", "host  ", r"^ *host  +: (?P<node>\S+)",
         CASCADE),
    _end("agent-block", "torch elastic/multiprocessing/errors/__init__.py", "Root Cause|NO_OTHER_FAILURES",
         r"Root Cause|<NO_OTHER_FAILURES>", CASCADE),
    _end("signal-end", "bash, Open MPI, CPython subprocess how a process ended",
         "exited on signal|died with <Signals|Killed|: Signal |WTERMSIG|terminated with signal",
         r"_job_complete: JobId=\d+ WTERMSIG (?P<signal3>\d+)|"
         r"(?:process rank (?P<rank>\d+) .*)?exited on signal (?P<signal>\d+)|died with <Signals\.(?P<name>\w+)|"
         r"process \d+ terminated with signal (?P<name2>\w+)|"
         r"\d (?P<killed>Killed)\b|^(?P<killed2>Killed)$|[Tt]raceback ?: Signal (?P<signal2>\d+)"),
    _end("srun-task", "Slurm srun's task exits", "srun: error: ",
         r"srun: error: (?P<node>[\w.-]+): tasks? (?P<task>[\d,-]+): (?!Out Of Memory)(?P<end>Exited "
         r"with exit code (?P<code>\d+)|[A-Z][\w ]+)"),
    _end("composer-exit", "Composer cli/launcher.py", "crashed with exit code|exited with code",
         r"\bRank (?P<rank>\d+) crashed with exit code (?P<code>-?\d+)|"
         r"[Gg]lobal rank (?P<rank2>\d+) \(PID (?P<pid>\d+)\) exited with code (?P<code2>-?\d+)"),
    _end("lightning-exit", "Lightning fabric/strategies/launchers/subprocess_script.py", "Child process with PID",
         r"(?:\[rank: (?P<rank>\d+)\] )?Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)"),
    _end("sglang-exit", "SGLang srt/entrypoints/engine.py, multimodal_gen/runtime/launch_server.py",
        "DataParallelController", r"Scheduler or DataParallelController (?P<pid>\d+) terminated with (?P<code>-?\d+)"),
    _end("vllm-exit", "vLLM v1/engine/utils.py", "Failed core proc(s)",
         r"Failed core proc\(s\): \{'[^']*': (?P<code>-?\d+)"),
    _end("horovod-exit", "Horovod runner/gloo_run.py, runner/mpi_run.py", "exit with status code|failed with exit code",
         r"Process \d+ exit with status code (?P<code>\d+)|mpirun failed with exit code (?P<code2>\d+)"),
    _end("hydra-host", "MPICH hydra tools/bootstrap, Intel MPI: the block that BAD TERMINATION opens", "RUNNING AT",
         r"^= +(?:RANK (?P<rank>\d+) )?PID (?P<pid>\d+) RUNNING AT (?P<node>\S+)", CASCADE),
    _end("hydra-exit", "MPICH hydra tools/bootstrap, Intel MPI: the block that BAD TERMINATION opens",
         "KILLED BY SIGNAL|EXIT STRING",
         r"^= +KILLED BY SIGNAL: (?P<signal>\d+)|EXIT STRING: [\w ]+ \(signal (?P<signal3>\d+)\)"),
    _end("systemd-exit", "systemd src/core/service.c", "ain process exited, code=",
         r"[Mm]ain process exited, code=(?:(?:killed|dumped), status=(?P<signal>\d+)|"
         r"exited, status=(?P<code>[1-9]\d{0,2}))/"),
    # Open MPI, PRRTE, Horovod and SGLang write it on a line of its own, Kubernetes as a field of a container's state.
    _end("exit-line", "Open MPI help-prun.txt, Horovod runner/gloo_run.py, SGLang launch_server.py, kubectl describe",
         "xit code:|xit Code:|exitCode:", r"^ *(?:[Ee]xit [Cc]ode|exitCode): *(?P<code>-?[1-9]\d{0,2})$"),
)  # fmt: skip

# What containers and MPI say where they start nothing.
STARTS = (
    Row("container-runtime", "cuda-device-unavailable", ROOT,
        "Docker daemon, containerd: a runtime that its configuration does not name",
        "nknown runtime|nknown or invalid runtime",
        r"[Uu]nknown (?:or invalid )?runtime (?:specified|name:?):? (?!nvidia)(?P<runtime>[\w.-]{1,60})",
        confidence=0.93, means="that container runtime is not installed there",
        fix="Install {runtime}'s package on {node} (habanalabs-container-runtime, ascend-docker-runtime), name "
            "it under `runtimes` of /etc/docker/daemon.json, and run `systemctl restart docker`"),
    Row("ssh-key-mode", "ssh-auth", ROOT, "OpenSSH authfile.c, sshd auth.c: modes of keys and directories",
        "PRIVATE KEY FILE|are too open|bad permissions|bad ownership",
        r"UNPROTECTED PRIVATE KEY FILE|Permissions \d{3,4} for '[^']+' are too open|Load key .*bad permissions|"
        r"bad ownership or modes", confidence=0.95, means="ssh takes no key or directory that others may write or read",
        fix="Run `chmod 700 ~/.ssh; chmod 600 ~/.ssh/*` on {node}, as the user who owns them. A secret of Kubernetes "
            "takes `defaultMode: 0600`"),
    Row("container-capability", "permission-denied", ROOT, "capabilities(7), seccomp(2): errno 1 EPERM in a container",
        "peration not permitted",
        r"^(?:chroot|unshare|setns|mount|ptrace|sched_setaffinity|mbind|set_mempolicy|io_uring_setup|"
        r"perf_event_open)\b.*Operation not permitted", confidence=0.85,
        means="the container lacks the capability for it",
        fix="Give the container that capability: `securityContext.capabilities.add` of a pod, `--cap-add` of `docker "
            "run`. sshd wants SYS_CHROOT, py-spy SYS_PTRACE, and NUMA calls want SYS_NICE"),
    Row("mpi-interface", "no-interface", ROOT, "Open MPI opal/mca/btl/tcp/help-mpi-btl-tcp.txt, help-mpi-runtime.txt",
        "_tcp_if_", "invalid value was given for (?:btl|oob)_tcp_if_(?:include|exclude)", confidence=0.93,
        means="that interface is not on this node",
        fix="Name a network that every node has, not an interface: `mpirun --mca btl_tcp_if_include 10.0.0.0/24 --mca "
            "oob_tcp_if_include 10.0.0.0/24 …`, with the one that `ip -br addr` shows on all of them"),
    Row("mpi-unreachable", "wrong-interface", ROOT, "Open MPI ompi/help-mpi-runtime.txt",
        "unable to reach each other", "processes are unable to reach each other", confidence=0.8,
        means="Open MPI found no network that links the processes",
        fix="Name the network that links the nodes: `mpirun --mca btl_tcp_if_include 10.0.0.0/24 …`, and look "
            "at `ip -br addr` on both"),
    Row("hydra-name", "name-resolution", ROOT, "MPICH hydra lib/utils/sock.c", "unable to get host address for",
        r"unable to get host address for (?P<host>[\w.-]{1,120})", confidence=0.93),
    Row("hydra-connect", "master-unreachable", ROOT, "MPICH hydra proxy/pmip.c", "unable to connect to server",
        r"unable to connect to server (?P<peer>[\w.-]{1,120}) at port (?P<port>\d+)", confidence=0.75,
        means="the node does not reach the one that started it", also="port-blocked",
        fix="Run `getent hosts {peer}; nc -vz {peer} 22` on the other nodes. Name the interface that links them "
            "(`mpirun -iface IFACE`), or open the firewall for MPIEXEC_PORT_RANGE"),
)  # fmt: skip

# What any launcher says of a process. The rows that know more of it are tried first.
GENERAL = (
    _end("exit-words", "any launcher's words: docker compose, horovodrun, pdsh, make", "exit|crashed|terminated",
         r"\b(?:exit(?:ed|s)?|crashed|terminated)(?: with)?(?: an?)?(?: (?:exit|return|error))?"
         r"(?: (?:code|status)){1,2}[ :=]{1,3}\(?(?P<code>-?[1-9]\d{0,2})\b(?!\.\d)"),
    # The least that can be said: it forbids to say that no line tells of a failure, and is evidence of last resort.
    Row("alarm", "unknown", SYMPTOM, "any program's words for what went wrong",
        "ERROR|FATAL|CRITICAL|NCCL WARN|rror|RROR|errno: |atal|xception|rashed|erminated|borted|ailed|FAILED|"
        "RESOURCE_EXHAUSTED|esource exhausted|nan|NaN|on-zero|onzero|is dead|died|Non-OK|halted|killed|imed out|"
        "ould not|annot |nable to",
        r"NCCL WARN|\b(?:[Ee]rror|ERROR)\b[^:]{0,40}: (?!(?:0|[\d.]+(?:e-?\d+)?|[Nn]one|null)(?:\s|,|$))|"
        r"Non-OK-status|halted unexpectedly|[Cc]heck failed: |\b[Ee]rror[.!](?:\s|$)|\berrno: [1-9]|"
        r"\breturned error\b|\b(?:FATAL|[Ff]atal|CRITICAL)\b|[Uu]nhandled exception|\bcrashed\b|"
        r"\bterminated\b(?! (?:normally|successfully|gracefully))|\b[Aa]borted\b|\b[Ff]ailed (?:to|with|on|at|in|"
        r"for|because)\b|\b[Ff]ailed[:!.]|\bFAILED\b|RESOURCE_EXHAUSTED|[Rr]esource exhausted|"
        r"[Nn]on-?zero (?:exit|status|return)|\bis dead\b|\bdied\b|\bkilled\b|\b[Tt]imed out\b|\b(?:[Cc]ould not|"
        r"[Cc]annot|[Uu]nable to) (?:be )?(?:open|load|find|connect|reach|start|create|allocate|bind|"
        r"initiali[sz]e|read|write|save|launch|join|resolve)|\b(?:nan|NaN)\b.{0,40}\b(?:detected|encountered|"
        r"found|unexpected|stopping|abort)|\b(?:[Dd]etected|[Ee]ncountered|[Ff]ound|[Uu]nexpected|"
        r"is)\b.{0,30}\b(?:nan|NaN)\b", confidence=0.1, rule="alarm"),
)  # fmt: skip
