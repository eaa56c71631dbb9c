"""Keeps Ray on one node: starts it, says when all nodes are in it, and ends as it ends.

    PYTHON runner_ray.py [--nodes 10.0.0.1,10.0.0.2] --logs FILE --ending FILE --links FILE start --head … --block

`ray start --block` looks at its processes once a second, and says what has ended to whoever reads all of its output.
This sees an end at once, and ends with the same signal or code. So a raylet that the kernel has killed is a killed
rank. `--nodes` are the addresses of all nodes, for the head alone. It asks Ray until Ray has them. Where Ray has not
ended as it was to (`--ending` has the reason), the ends of its logs go into the file of `--logs`.
Where Ray's directory has too long a path for its sockets, Ray is given a symbolic link to it. `--links` names the link,
and the agent removes it with the node directory.
It ships as this one file and runs under the training interpreter, Python 3.8 and later.
"""

import glob
import importlib
import importlib.util
import os
import re
import select
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

ALL_HERE = "Ray has all"  # the ready test of the role looks for it (settings/ray.py)
DONE = "roles-done"  # why a role is ended whose work is done (diagnose/roles.py)
LOOK = 0.25  # seconds between looks at what has no descriptor that tells of its end
PATIENCE = 1.0
SAID = 10.0  # seconds between two words on who is missing
MAIN = ("gcs_server", "raylet")  # without which a node of Ray is none
TAIL = 64 << 10  # bytes of each log
MOST_LOGS = 40
MOST_WORDS = 600  # of a sentence of Ray's
# src/ray/util/logging.cc: C is fatal. What Ray says to its own makers stands before what has failed.
FATAL = re.compile(r"^\[[^\]]* C \d+ \d+\] .*?\.cc:\d+: +(?:An unexpected system state.*?Check failed: )?(.*)$", re.M)
SOCKET_LIMIT = 107  # bytes of a Unix socket's path
# The longest that Ray has in its directory.
SOCKETS = "/session_2026-11-28_13-22-38_100322_4194304/sockets/plasma_store.1"
# What Ray must not hand on to the workers that it starts, which allranks has not made ranks.
OF_RANKS = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "NNODES",
    "NPROC_PER_NODE",
    "WORLD_SIZE",
    "TORCHELASTIC_ERROR_FILE",
)
# Ports that Ray would choose itself, or would take as its default whoever else has it. The last is of a head with
# ray[client] alone.
PORTS = (
    "dashboard_agent_listen_port",
    "dashboard_agent_grpc_port",
    "metrics_export_port",
    "runtime_env_agent_port",
    "ray_client_server_port",
)


class RayOptions:
    """The words before those of Ray."""

    def __init__(self, words: List[str]) -> None:
        self.values: Dict[str, str] = {}
        while words[0].startswith("--"):
            self.values[words[0]] = words[1]
            words = words[2:]
        self.ray = words

    def shorten(self) -> None:
        """Make Ray's directory, and give it a short name where its own is too long."""
        directory = self.of_ray("--temp-dir")
        os.makedirs(directory, 0o700, exist_ok=True)
        if len(directory.encode()) + len(SOCKETS) <= SOCKET_LIMIT:
            return
        for base in ("/tmp", "/var/tmp", "/dev/shm"):
            link = "%s/ray-%s" % (base, os.urandom(4).hex())
            try:
                with open(self.values["--links"], "a") as file:
                    file.write(link + "\n")
                os.symlink(directory, link)
            except OSError:
                continue
            self.ray = ["--temp-dir=" + link if word.startswith("--temp-dir=") else word for word in self.ray]
            return

    def of_ray(self, name: str) -> str:
        """Return the value of an option of `ray start`."""
        return next((word.partition("=")[2] for word in self.ray if word.startswith(name + "=")), "")


class RayNode:
    """Ray's processes on this node, below the one that started them."""

    def __init__(self, options: RayOptions) -> None:
        options.shorten()
        self.options = options
        is_head = "--head" in options.ray
        self.name = "ray-head" if is_head else "ray-worker"
        self.count = len(MAIN) if is_head else 1  # processes that a node cannot be without
        self.folder = os.path.join(options.of_ray("--temp-dir"), "session_latest", "logs")
        self.starter = 0
        self.main: Dict[int, Tuple[str, Optional[int]]] = {}  # name, and a descriptor that tells of the end

    def keep(self) -> None:
        """Start Ray and stay until something of it ends."""
        importlib.import_module("ray.scripts.scripts")  # once: the processes that are forked below have it too

        awaited = self.options.values.get("--nodes", "")
        cluster = RayCluster(self.options, awaited.split(",")) if awaited else None
        sys.stdout.flush()
        if cluster is None:
            await_head(self.options)
        self.starter = os.fork()
        if self.starter == 0:
            start_ray(self.options.ray)
        signal.signal(signal.SIGTERM, self.on_term)
        starter = end_of(self.starter)
        while True:
            self.find()
            ends = [starter, *(end for _, end in self.main.values())]
            is_quiet = cluster is None and len(self.main) == self.count and None not in ends
            select.select([end for end in ends if end is not None], [], [], PATIENCE if is_quiet else LOOK)
            self.look()
            if cluster is not None and cluster.is_complete():
                cluster = None

    def on_term(self, number: int, frame: object) -> None:
        """End at the agent's word: whatever is left of Ray is the agent's to end."""
        self.save_logs()
        os._exit(128 + number)

    def find(self) -> None:
        """Find the processes without which this node is none."""
        if len(self.main) == self.count:
            return
        for pid in children(self.starter):
            name = text_of("/proc/%d/stat" % pid).rpartition(")")[0].partition("(")[2]
            if name in MAIN and pid not in self.main:
                self.main[pid] = (name, end_of(pid))

    def look(self) -> None:
        """End as Ray has ended, where it has."""
        for pid, (name, _) in self.main.items():
            fields = fields_of(pid)
            if not fields:
                self.fail(name, pid, None)
            elif fields[0] == "Z":
                self.fail(name, pid, int(fields[-1]))
        ended, status = os.waitpid(self.starter, os.WNOHANG)
        if ended:
            self.fail("ray start", self.starter, status)

    def fail(self, name: str, pid: int, status: Optional[int]) -> None:
        """Say what has ended and how, and end alike."""
        self.save_logs()
        number = 0
        code = 1
        how = "ended"
        if status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            how = "was killed by %s" % signal.Signals(number).name
        elif status is not None:
            code = os.WEXITSTATUS(status) or 1
            how = "ended with code %d" % os.WEXITSTATUS(status)
        # what it has said of its own failure: `[…] C pid tid] (raylet) file.cc:7:  text`
        failures = FATAL.findall(text_of(os.path.join(self.folder, name + ".out"), -TAIL))
        why = " ".join(failures[-1].split())[:MOST_WORDS] if failures else ""
        print("%s: %s (pid %d) %s%s" % (self.name, name, pid, how, ": " + why if why else ""), flush=True)
        if number:
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            time.sleep(1)  # a signal that ends nothing, such as SIGCONT, has ended no process either
        os._exit(code)

    def save_logs(self) -> None:
        """Write the ends of Ray's logs down, unless its work was done."""
        path = self.options.values.get("--logs", "")
        if not path or text_of(self.options.values.get("--ending", "")).strip() == DONE:
            return
        written = [log for log in glob.glob(self.folder + "/*.*") if os.path.getsize(log)]
        logs = [log for log in written if log.endswith((".out", ".err", ".log"))]
        logs.sort(key=lambda log: (os.path.basename(log).split(".")[0] not in MAIN, -os.path.getmtime(log)))
        with open(path, "ab") as out:
            for log in logs[:MOST_LOGS]:
                out.write(b"==> session_latest/logs/%s <==\n" % os.path.basename(log).encode())
                with open(log, "rb") as file:
                    file.seek(max(0, os.path.getsize(log) - TAIL))
                    out.write(file.read(TAIL).rstrip(b"\n") + b"\n")


class RayCluster:
    """What Ray says of its nodes, until all of them are in it."""

    def __init__(self, options: RayOptions, awaited: List[str]) -> None:
        self.awaited = awaited
        address, _, port = options.of_ray("--address").rpartition(":")
        self.place = (address.strip("[]") or options.of_ray("--node-ip-address"), int(port or options.of_ray("--port")))
        self.state: Any = None
        self.began = self.said = time.monotonic()

    def is_complete(self) -> bool:
        """Ask Ray; say it once all nodes are there, and now and then who is not."""
        nodes = self.ask()
        now = time.monotonic()
        if len(nodes) >= len(self.awaited):
            gpus = sum(node["Resources"].get("GPU", 0) for node in nodes)
            cpus = sum(node["Resources"].get("CPU", 0) for node in nodes)
            print("%s %d nodes: %d GPUs, %d CPUs" % (ALL_HERE, len(nodes), gpus, cpus), flush=True)
            return True
        if now - self.said > SAID:
            self.said = now
            here = {node["NodeManagerAddress"] for node in nodes}
            missing = [address for address in dict.fromkeys(self.awaited) if address not in here]
            words = "ray-head: Ray has %d of %d nodes" % (len(nodes), len(self.awaited))
            print(words + (", and waits for " + ", ".join(missing) if missing else ""), flush=True)
        return False

    def ask(self) -> List[Dict[str, Any]]:
        """Return the nodes that Ray has; none where its head does not answer yet."""
        if self.state is None:
            try:
                socket.create_connection(self.place, 0.2).close()
            except OSError:
                return []
            # What `ray.nodes()` reads, without a driver of Ray's: a job would be counted.
            host, port = self.place
            address = "%s:%d" % ("[%s]" % host if ":" in host else host, port)
            create = importlib.import_module("ray._raylet").GcsClientOptions.create
            options = create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
            self.state = importlib.import_module("ray._private.state").GlobalState()
            self.state._initialize_global_state(options)
        return [node for node in self.state.node_table() if node["Alive"]]


def await_head(options: RayOptions) -> None:
    """Wait until Ray has its head: a worker that comes sooner gives up after some seconds.

    A process of its own asks, as one that has spoken gRPC is not to be forked.
    """
    asking = os.fork()
    if asking == 0:
        head = RayCluster(options, [])
        while not head.ask():
            time.sleep(LOOK)
        os._exit(0)
    os.waitpid(asking, 0)


def start_ray(words: List[str]) -> None:
    """Be `ray start`, and never return."""
    for name in OF_RANKS:
        os.environ.pop(name, None)
    scripts = importlib.import_module("ray.scripts.scripts")
    known = {option.name for option in scripts.start.params}
    has_client = "--head" in words and importlib.util.find_spec("grpc") is not None
    names = [name for name in PORTS if name in known and (has_client or name != PORTS[-1])]
    given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in words}
    sys.argv = ["ray", *words]
    sockets = []
    for name in names:
        if name not in given:
            sock = socket.socket()
            sock.bind(("", 0))
            sockets.append(sock)
            port = sock.getsockname()[1]
            sys.argv.append("--%s=%d" % (name.replace("_", "-"), port))
    for sock in sockets:  # all of them at once, so that no two ports are the same
        sock.close()
    sys.exit(scripts.main())


def text_of(path: str, first: int = 0) -> str:
    """Read 64 KB of a file, from an offset or, where that is negative, before its end; empty where it is not there."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, first if first >= 0 else os.path.getsize(path) + first))
            return file.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""


def children(pid: int) -> List[int]:
    """List the children of a process."""
    return [int(word) for word in text_of("/proc/%d/task/%d/children" % (pid, pid)).split()]


def fields_of(pid: int) -> List[str]:
    """Read what /proc/PID/stat has behind the name: the state first, then the parent, the status of the end last."""
    return text_of("/proc/%d/stat" % pid).rpartition(")")[2].split()


def end_of(pid: int) -> Optional[int]:
    """Open a descriptor that can be read once a process has ended; None where there is none to have."""
    try:
        return os.pidfd_open(pid)  # type: ignore[attr-defined, unused-ignore]
    except (AttributeError, OSError):
        return None


if __name__ == "__main__":
    RayNode(RayOptions(sys.argv[1:])).keep()
