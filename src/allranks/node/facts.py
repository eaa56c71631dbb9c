"""What a node is and has, for the checks before ranks start: `collect(request)` → one JSON object.

Parts that may block (names, file systems of the user's, another interpreter) run side by side in
threads with a limit each; the others only read /proc and /dev. A part that fails is {"error": …}.
"""

import glob
import os
import pwd
import resource
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from . import gpufacts, netfacts, pyfacts
from .nodedir import bases

FILE_SECONDS = 5.0
CONF_LIMIT = 4096
NCCL_PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_")
PLUGIN_PREFIXES = ("libnccl-net", "librccl-net", "libnccl-env")


class Part(NamedTuple):
    """One key of the facts; `seconds` 0 means it cannot block."""

    name: str
    look: Callable[[], Any]
    seconds: float = 0.0


def collect(request: Mapping[str, Any]) -> Dict[str, Any]:
    """The facts of this node (keys: see `_parts`, and hostname, t, monotonic). Never raises."""
    found = {"hostname": _hostname()}  # type: Dict[str, Any]
    begun = time.monotonic()
    parts = _parts(request)
    waiting = [(part, _start(part, found)) for part in parts if part.seconds]
    for part in parts:
        if not part.seconds:
            _run(part, found)
    for part, thread in waiting:
        if thread is not None:
            thread.join(max(0.0, begun + part.seconds - time.monotonic()))
    result = dict(found)  # a thread that comes late writes into the other one
    for part in parts:
        result.setdefault(part.name, {"error": "no answer within %g s" % part.seconds})
    result["t"], result["monotonic"] = time.time(), time.monotonic()
    return result


def _parts(request: Mapping[str, Any]) -> List[Part]:
    environ = request.get("environ") or dict(os.environ)  # type: Mapping[str, str]
    workdir = os.path.expanduser(str(request.get("workdir") or os.getcwd()))
    program = pyfacts.read_program([str(w) for w in request.get("command") or []], request.get("kind"))
    node_dirs = request.get("node_dirs") or bases(None)
    return [
        Part("own_name", lambda: netfacts.own_name(_hostname()), netfacts.NAME_SECONDS + 1),
        Part(
            "interpreter",
            lambda: pyfacts.interpreter(request, program, workdir, environ),
            pyfacts.INTERPRETER_SECONDS + 2,
        ),
        Part("workdir", lambda: _workdir(workdir), FILE_SECONDS),
        Part("script", lambda: pyfacts.find_target(program, workdir, environ), FILE_SECONDS),
        Part("disk", lambda: _disk(workdir, [str(d) for d in node_dirs]), FILE_SECONDS),
        Part("data", lambda: [_data(str(p)) for p in request.get("data_paths") or []], FILE_SECONDS),
        Part("nccl", lambda: _nccl(environ), FILE_SECONDS),
        Part("interfaces", netfacts.interfaces),
        Part("limits", _limits),
        Part("shm", lambda: _shm("/dev/shm")),
        Part("gpus", lambda: gpufacts.gpus(environ)),
        Part("logind", logind),
        Part("port_range", _port_range),
        Part("identity", _identity),
        Part("ipv6", netfacts.dual_stack),
        Part("cpu", lambda: len(os.sched_getaffinity(0))),
        Part("mem", _memory),
        Part("load", os.getloadavg),
    ]


def _run(part: Part, found: Dict[str, Any]) -> None:
    try:
        found[part.name] = part.look()
    except Exception as error:
        found[part.name] = {"error": "%s: %s" % (type(error).__name__, error)}


def _start(part: Part, found: Dict[str, Any]) -> Optional[threading.Thread]:
    thread = threading.Thread(target=_run, args=(part, found), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads allowed
        _run(part, found)
        return None
    return thread


def _hostname() -> str:
    try:
        return socket.gethostname()
    except OSError:
        return "?"


def _read(path: str, limit: int = 65536) -> str:
    with open(path, "rb") as file:
        return file.read(limit).decode("utf-8", "replace")


def _read_or_none(path: str) -> Optional[str]:
    try:
        return _read(path).strip()
    except OSError:
        return None


def _workdir(path: str) -> Dict[str, Any]:
    return {
        "path": path,
        "exists": os.path.isdir(path),
        "readable": os.access(path, os.R_OK),
        "cwd_ok": os.path.isdir(path) and os.access(path, os.X_OK),
    }


def _data(path: str) -> Dict[str, Any]:
    return {"path": path, "exists": os.path.exists(path), "readable": os.access(path, os.R_OK)}


def _disk(workdir: str, node_dirs: List[str]) -> Dict[str, Any]:
    """Free space for this user; "node_dir" is the first base that can be written."""
    places = [_space(path) for path in node_dirs]
    usable = next((p for p in places if p.get("writable")), None)
    return {"node_dir": usable, "node_dirs": places, "workdir": _space(workdir)}


def _space(path: str) -> Dict[str, Any]:
    try:
        found = os.statvfs(path)
    except OSError as error:
        return {"path": path, "writable": False, "error": error.strerror or str(error)}
    writable = os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK) and not found.f_flag & os.ST_RDONLY
    return {
        "path": path,
        "writable": writable,
        "bytes": found.f_bavail * found.f_frsize,
        "inodes": found.f_favail if found.f_files else None,  # some file systems do not count them
    }


def _shm(path: str) -> Dict[str, Any]:
    found = os.statvfs(path)
    return {"bytes": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


def _limits() -> Dict[str, Any]:
    """[soft, hard]; -1 is unlimited."""
    return {
        "nofile": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "memlock": list(resource.getrlimit(resource.RLIMIT_MEMLOCK)),
    }


def _nccl(environ: Mapping[str, str]) -> Dict[str, Any]:
    """Whatever may speak about NCCL's or Gloo's interfaces on this node."""
    rdma = "/sys/class/infiniband"
    return {
        "environ": {k: str(v) for k, v in environ.items() if k.startswith(NCCL_PREFIXES)},
        "conf": _conf_files(environ),
        "plugins": _plugins(environ),
        "rdma": sorted(os.listdir(rdma)) if os.path.isdir(rdma) else [],
    }


def _conf_files(environ: Mapping[str, str]) -> Dict[str, str]:
    """In NCCL's order (src/misc/param.cc, initEnvFunc): NCCL_CONF_FILE or ~/.nccl.conf, then /etc."""
    own = environ.get("NCCL_CONF_FILE") or os.path.join(_home(), ".nccl.conf")
    found = {}  # type: Dict[str, str]
    for path in (own, "/etc/nccl.conf"):
        try:
            found[path] = _read(path, CONF_LIMIT)
        except OSError:
            continue
    return found


def _home() -> str:
    """The password entry's, not $HOME, as NCCL does."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.path.expanduser("~")


def _plugins(environ: Mapping[str, str]) -> List[str]:
    """Network plug-ins that dlopen would find: LD_LIBRARY_PATH and the loader's cache."""
    found = set()
    for directory in environ.get("LD_LIBRARY_PATH", "").split(":"):
        try:
            names = os.listdir(directory) if directory else []
        except OSError:
            continue
        found.update(n for n in names if n.startswith(PLUGIN_PREFIXES) and ".so" in n)
    try:
        cache = _read("/etc/ld.so.cache", 4 << 20)
    except OSError:
        cache = ""
    for prefix in PLUGIN_PREFIXES:
        at = cache.find(prefix)
        while at >= 0:
            found.add(os.path.basename(cache[at : cache.find("\0", at)]))
            at = cache.find(prefix, at + 1)
    return sorted(found)


def logind(root: str = "/") -> Optional[Dict[str, Any]]:
    """What systemd-logind does to this user's processes when a session ends; None without systemd.

    logind.conf(5): drop-ins of /usr/lib, /run and /etc in the order of their names, above the main file,
    whose comments show the compiled-in defaults. KillExcludeUsers is root unless set.
    """
    if not os.path.isdir(os.path.join(root, "run/systemd/system")):
        return None
    values = {"KillUserProcesses": "no", "RemoveIPC": "yes", "KillExcludeUsers": "root", "KillOnlyUsers": ""}
    for path in _logind_files(root):
        for line in (_read_or_none(path) or "").splitlines():
            key, sign, value = line.strip().partition("=")
            is_default = key.startswith("#") and path.endswith("/logind.conf")
            key = key.lstrip("#").strip() if is_default else key.strip()
            if sign and key in values and (value.strip() or not is_default):
                values[key] = value.strip()
    user = _user()
    kills = values["KillUserProcesses"].lower() in ("yes", "true", "1", "on")
    only = values["KillOnlyUsers"].split()
    kills = kills and user not in values["KillExcludeUsers"].split() and (not only or user in only)
    return {
        "KillUserProcesses": kills,
        "RemoveIPC": values["RemoveIPC"].lower() in ("yes", "true", "1", "on"),
        "Linger": os.path.exists(os.path.join(root, "var/lib/systemd/linger", user)),
        "in_session": "session-" in (_read_or_none(os.path.join(root, "proc/self/cgroup")) or ""),
    }


def _logind_files(root: str) -> List[str]:
    homes = [os.path.join(root, d, "systemd") for d in ("usr/lib", "run", "etc")]
    by_name = {}  # type: Dict[str, str]
    for home in homes:  # a later directory replaces a file of the same name
        for path in glob.glob(os.path.join(home, "logind.conf.d", "*.conf")):
            by_name[os.path.basename(path)] = path
    main = [os.path.join(home, "logind.conf") for home in homes]
    return main + [by_name[name] for name in sorted(by_name)]


def _port_range() -> List[int]:
    return [int(word) for word in _read("/proc/sys/net/ipv4/ip_local_port_range").split()]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _identity() -> Dict[str, Any]:
    """Two nodes with the same boot_id, netns and pidns are the same machine."""
    return {
        "boot_id": _read_or_none("/proc/sys/kernel/random/boot_id"),
        "machine_id": _read_or_none("/etc/machine-id"),
        "netns": _inode("/proc/self/ns/net"),
        "pidns": _inode("/proc/self/ns/pid"),
        "uid": os.getuid(),
        "user": _user(),
    }


def _inode(path: str) -> Optional[int]:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _memory() -> Dict[str, int]:
    found = {}  # type: Dict[str, int]
    for line in _read("/proc/meminfo").splitlines():
        key, _, rest = line.partition(":")
        if key in ("MemTotal", "MemAvailable"):
            found[key[3:].lower()] = int(rest.split()[0]) * 1024
    return found
