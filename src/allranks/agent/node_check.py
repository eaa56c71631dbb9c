"""What a node is and has, for the checks before ranks start: `check_node(order)` → one JSON object.

Parts that may block (names, file systems of the user's, another interpreter) run side by side in
threads with a limit each; the others only read /proc and /dev. A part that fails is {"error": …}. Then the
checks that the order names collect theirs, each under its own name.
"""

from __future__ import annotations

import itertools
import os
import pwd
import re
import socket
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from allranks.protocol.codec import DecodeError, decode_parts, encode
from allranks.protocol.command_words import Words, read_command
from allranks.protocol.facts import (
    DirectoryFacts,
    DiskFacts,
    FreeSpace,
    Identity,
    Interpreter,
    LoginFacts,
    Memory,
    NcclFacts,
    NodeScheduler,
    PathFacts,
    SharedMemory,
    TargetFacts,
)
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.orders import SetupOrder
from allranks.protocol.records import NamedTuple

from . import gpufacts, netfacts
from .bounded_commands import FactPart, collect_parts, run_command
from .files import find_program, names_in, read_file, read_text
from .node_directory import bases
from .prelude import run_prelude
from .processes import user_name

FILE_SECONDS = 5.0
CONF_LIMIT = 4096
NCCL_PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_")
PLUGIN = r"lib(?:nccl-net|rccl-net|nccl-env)[^\0/]*"

INTERPRETER_SECONDS = 20.0
MOST_LISTED = 1000  # entries of a directory in which a script is missing
MOST_SCRIPTS = 50
ANSWER = "ALLRANKS-PYTHON"
ANSWER_LIMIT = 1 << 20  # bytes: the site of an interpreter may print before it

# Runs as the user would run it, in any Python from 2.7 on; no module of the working directory is
# imported. torch/version.py is read as text: importing torch takes seconds, importlib.metadata 30 ms. `python -m NAME`
# looks into the working directory first; finding a module of the first level imports nothing. What importlib.util and
# re would do is done here: to import them takes as long as all the rest.
QUESTION = r"""
import sys
sys.path[:] = [p for p in sys.path if p]
import os
out = {"version": "%d.%d.%d" % sys.version_info[:3]}
if "free-threading build" in sys.version:
    out["version"] += "t"
def find(name):
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec and find_spec(name, None)
        if spec:
            return spec
def value_in(lines, name):
    for line in lines:
        left, _, right = line.partition("=")
        value = right.strip().split("'")
        if left.partition(":")[0].rstrip() == name and value[0] == "" and len(value) > 2 and value[1]:
            return value[1]
try:
    spec = find("torch")
    if spec is not None and spec.origin:
        out["torch"] = "?"
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as f:
            lines = f.read().splitlines()
        for key, name in (("__version__", "torch"), ("cuda", "cuda"), ("hip", "hip")):
            value = value_in(lines, key)
            if value:
                out[name] = value
except Exception:
    pass
if "ray" in sys.argv[2:]:
    try:
        from importlib.metadata import version
        out["ray"] = version("ray")
    except Exception:
        pass
if sys.argv[1]:
    try:
        with open(sys.argv[1], "rb") as f:
            compile(f.read(4000000), sys.argv[1], "exec", dont_inherit=True)
    except SyntaxError as error:
        out["syntax"] = ("line %s: %s" % (error.lineno, error.msg)).replace("\t", " ")
    except Exception:
        pass
lacks = []
sys.path.insert(0, os.getcwd())
for name in sys.argv[2:]:
    try:
        if sys.meta_path and find(name) is None:
            lacks.append(name)
    except Exception:
        pass
if lacks:
    out["lacks"] = ",".join(lacks)
sys.stdout.write("\nALLRANKS-PYTHON\t%s\n" % "\t".join("%s=%s" % i for i in out.items()))
"""


class NodeCheck(NamedTuple):
    """The facts of a node, and the environment that ranks get after the prelude."""

    facts: JsonObject
    environment: Dict[str, str]


def check_node(order: SetupOrder, session: Dict[str, str]) -> NodeCheck:
    """Run the prelude on top of the session's environment, and collect the facts of this node after it.

    Raise DecodeError that says why the prelude failed."""
    environment = dict(session)
    for name in ("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"):
        environment.pop(name, None)
    remarks: Sequence[str] = ()
    if order.prelude:
        outcome = run_prelude(order.prelude, environment, order.workdir)
        if outcome.environment is None:
            raise DecodeError(outcome.error)
        environment = outcome.environment
        remarks = outcome.remarks
    facts = collect(order._replace(environ={**environment, **order.environ}))
    facts["prelude"] = {"remarks": remarks}
    return NodeCheck(facts, environment)


def collect(order: SetupOrder) -> JsonObject:
    """Collect the facts of this node (keys: see `_parts`, and hostname). Never raises."""
    facts = {"hostname": socket.gethostname(), **collect_parts(_parts(order))}
    if order.checks:
        from .checks import NodeHost, collect_checks  # late: they need preflight, a third of an agent's start

        facts.update(collect_checks(order.checks, NodeHost(encode(order), order.environ, facts)))
    return facts


def _parts(order: SetupOrder) -> List[FactPart]:
    environ = order.environ
    workdir = os.path.expanduser(order.workdir or os.getcwd())
    program = read_command(order.command, order.kind)
    return [
        FactPart("own_name", lambda: netfacts.resolve(socket.gethostname()), netfacts.NAME_SECONDS),
        FactPart("interpreter", lambda: interpreter(order, program, workdir, environ), INTERPRETER_SECONDS + 2),
        FactPart("workdir", lambda: _workdir(workdir), FILE_SECONDS),
        FactPart("script", lambda: find_target(program, workdir, _with_programs(order, environ)), FILE_SECONDS),
        FactPart("disk", lambda: disk_facts(bases(order.node_dir)), FILE_SECONDS),
        FactPart("data", lambda: list(map(_data, order.data_paths)), FILE_SECONDS),
        FactPart("nccl", lambda: nccl_facts(environ), FILE_SECONDS),
        FactPart("interfaces", netfacts.interfaces),
        FactPart("shm", _shm),
        FactPart("gpus", lambda: gpufacts.gpus(environ)),
        FactPart("logind", logind),
        FactPart("identity", _identity),
        FactPart("scheduler", lambda: scheduler(os.environ, read_text("/proc/self/cgroup"))),
        FactPart("cpu", lambda: len(os.sched_getaffinity(0))),
        FactPart("mem", _memory),
    ]


def _workdir(path: str) -> DirectoryFacts:
    exists = os.path.isdir(path)
    return DirectoryFacts(path, exists, exists and os.access(path, os.X_OK))


def _data(path: str) -> PathFacts:
    return PathFacts(path, os.path.exists(path), os.access(path, os.R_OK))


def disk_facts(node_dirs: List[str]) -> DiskFacts:
    """Measure the places for a node directory; the first one that can be written is taken."""
    places = tuple(_space(path) for path in node_dirs)
    usable = next((p for p in places if p.writable), None)
    return DiskFacts(usable, places)


def _space(path: str) -> FreeSpace:
    try:
        disk = os.statvfs(path)
    except OSError:
        return FreeSpace(path)
    writable = os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK) and not disk.f_flag & os.ST_RDONLY
    return FreeSpace(path, writable, disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else None)


def _shm() -> SharedMemory:
    disk = os.statvfs("/dev/shm")
    return SharedMemory(disk.f_blocks * disk.f_frsize)


def nccl_facts(environ: Mapping[str, str]) -> NcclFacts:
    """Read what configures NCCL: variables, configuration files (4 KiB of each), plugins, devices."""
    rdma = "/sys/class/infiniband"
    variables = {k: str(v) for k, v in environ.items() if k.startswith(NCCL_PREFIXES)}
    return NcclFacts(variables, _conf_files(environ), tuple(_plugins(environ)), tuple(sorted(names_in(rdma))))


def _conf_files(environ: Mapping[str, str]) -> Dict[str, str]:
    """In NCCL's order (src/misc/param.cc, initEnvFunc): NCCL_CONF_FILE or ~/.nccl.conf, then /etc."""
    user_file = environ.get("NCCL_CONF_FILE") or os.path.join(_home(), ".nccl.conf")
    texts: Dict[str, str] = {}
    for path in (user_file, "/etc/nccl.conf"):
        try:
            texts[path] = read_file(path, CONF_LIMIT).decode("utf-8", "replace")
        except OSError:
            continue
    return texts


def _home() -> str:
    """Return the home directory of the password entry, not $HOME, as NCCL does."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.path.expanduser("~")


def _plugins(environ: Mapping[str, str]) -> List[str]:
    libraries = set(re.findall(PLUGIN, read_text("/etc/ld.so.cache", 4 << 20)))
    for directory in filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")):
        libraries.update(name for name in names_in(directory) if re.match(PLUGIN, name) and ".so" in name)
    return sorted(libraries)


def logind(root: str = "/") -> Optional[LoginFacts]:
    """Read what systemd-logind does to this user's processes when a session ends; None without systemd.

    logind.conf(5): drop-ins of /usr/lib, /run and /etc in the order of their names, above the main file,
    whose comments show the compiled-in defaults. KillExcludeUsers is root unless set.
    """
    if not os.path.isdir(os.path.join(root, "run/systemd/system")):
        return None
    values = {"KillUserProcesses": "no", "KillExcludeUsers": "root", "KillOnlyUsers": ""}
    for path in _logind_files(root):
        for line in read_text(path).splitlines():
            key, sign, value = line.strip().partition("=")
            is_default = key.startswith("#") and path.endswith("/logind.conf")
            if is_default:
                key = key.lstrip("#")
            key = key.strip()
            if sign and key in values and (value.strip() or not is_default):
                values[key] = value.strip()
    user = user_name(os.getuid())
    kills = values["KillUserProcesses"].lower() in ("yes", "true", "1", "on")
    only = values["KillOnlyUsers"].split()
    kills = kills and user not in values["KillExcludeUsers"].split() and (not only or user in only)
    in_session = "session-" in read_text(os.path.join(root, "proc/self/cgroup"))
    return LoginFacts(kills, in_session)


def _logind_files(root: str) -> List[str]:
    homes = [os.path.join(root, d, "systemd") for d in ("usr/lib", "run", "etc")]
    by_name: Dict[str, str] = {}
    for home in homes:  # a later directory replaces a file of the same name
        directory = os.path.join(home, "logind.conf.d")
        for name in names_in(directory):
            if name.endswith(".conf") and not name.startswith("."):
                by_name[name] = os.path.join(directory, name)
    main = [os.path.join(home, "logind.conf") for home in homes]
    return main + [by_name[name] for name in sorted(by_name)]


def _identity() -> Identity:
    return Identity(
        boot_id=read_text("/proc/sys/kernel/random/boot_id") or None,
        machine_id=read_text("/etc/machine-id") or None,
        netns=_inode("/proc/self/ns/net"),
        pidns=_inode("/proc/self/ns/pid"),
        uid=os.getuid(),
        user=user_name(os.getuid()),
        hardware=read_text("/sys/class/dmi/id/product_uuid") or None,
    )


def scheduler(environ: Mapping[str, str], cgroup: str) -> NodeScheduler:
    """Tell who started this process, by its variables and its cgroup: slurmd, the kubelet, or neither."""
    step = re.search(r"/slurm\S{0,80}/job_(\d{1,12})", cgroup)  # slurm cgroup plugins: …/uid_0/job_12, …scope/job_12
    job = environ.get("SLURM_JOB_ID") or (step[1] if step else "")
    if job:
        return NodeScheduler("slurm", job)
    if environ.get("KUBERNETES_SERVICE_HOST") or "/kubepods" in cgroup:
        return NodeScheduler("kubernetes", socket.gethostname())
    return NodeScheduler("none")


def _inode(path: str) -> Optional[int]:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _memory() -> Memory:
    sizes = dict(line.split(":") for line in read_text("/proc/meminfo").splitlines())
    return Memory(int(sizes["MemTotal"].split()[0]) * 1024)


# -- the training program and its interpreter ------------------------------------------------------


def _with_programs(order: SetupOrder, environ: Mapping[str, str]) -> Mapping[str, str]:
    directory = os.path.dirname(os.path.expanduser(order.python or ""))
    if not os.path.isabs(directory):
        return environ
    return {**environ, "PATH": directory + ":" + environ.get("PATH", os.defpath)}


def find_target(program: Words, workdir: str, environ: Mapping[str, str]) -> TargetFacts:
    """Tell whether the script or the program is there."""
    target = program.target
    if target is None or program.kind == "python-module":
        return TargetFacts(program.kind)
    if program.kind == "program":
        place = lookup(target, workdir, environ)
        if place is not None:
            return TargetFacts(program.kind, name=target, path=place, exists=True)
        path = os.path.join(workdir, os.path.expanduser(target))
        facts = TargetFacts(program.kind, name=target, path=target, exists=False)
        return facts._replace(beside=(os.path.basename(path),)) if os.path.isfile(path) else facts
    path = os.path.join(workdir, target)
    exists = os.path.isfile(path) or (os.path.exists(path) and not os.path.isdir(path))
    beside = () if exists else _scripts_beside(path)
    return TargetFacts(program.kind, path=path, exists=exists, readable=os.access(path, os.R_OK), beside=beside)


def _scripts_beside(path: str) -> Tuple[str, ...]:
    try:
        with os.scandir(os.path.dirname(path)) as entries:
            first = [entry.name for entry in itertools.islice(entries, MOST_LISTED)]
    except OSError:
        return ()
    return tuple(sorted(name for name in first if name.endswith(".py"))[:MOST_SCRIPTS])


def lookup(name: str, workdir: str, environ: Mapping[str, str]) -> Optional[str]:
    """Find a program by path (relative to the working directory) or on the PATH that the ranks will have."""
    name = os.path.expanduser(name)
    if "/" in name:
        return find_program(os.path.join(workdir, name))
    return find_program(name, path=environ.get("PATH", os.defpath))


OF_ENVIRONMENT = ("VIRTUAL_ENV", "CONDA_PREFIX", "the environment of allranks")  # the rules for the caller's own


def choose_interpreter(
    order: SetupOrder, program: Words, workdir: str, environ: Mapping[str, str]
) -> Tuple[Optional[str], str]:
    """Path (None: absent) and which rule chose it: --python, the command's first word, an environment of
    OF_ENVIRONMENT where it is on this node too, python3 on the PATH after the prelude.

    A bare `python` of the command that is on no PATH here is meant as the caller's shell has it: by its environment."""
    if order.python:
        return lookup(order.python, workdir, environ), "--python: %s" % order.python
    word = program.python or order.launcher_python
    named = lookup(word, workdir, environ) if word else None
    if named is not None or word not in (None, "", "python", "python3"):
        return named, "the command: %s" % word
    prefixes = order.environments
    for how, prefix in zip(OF_ENVIRONMENT, prefixes):  # noqa: B905 (Python 3.8)
        if prefix:
            path = lookup(os.path.join(prefix, "bin", "python"), workdir, environ)
            if path is not None:
                return path, "%s: %s" % (how, prefix)
    if word:
        return None, "the command: %s" % word
    return lookup("python3", workdir, environ), "python3 on PATH"


def interpreter(order: SetupOrder, program: Words, workdir: str, environ: Mapping[str, str]) -> Interpreter:
    """Find the training interpreter: path, how it was chosen, and what it says of itself. Not for programs."""
    if program.kind == "program" and not order.python and not order.modules:
        return Interpreter(program.kind, skipped="the command is not a Python program")
    path, how = choose_interpreter(order, program, workdir, environ)
    if path is None:
        return Interpreter(program.kind, how, error="not found or not executable", missing=True)
    script = ""
    if program.kind == "python-script":
        script = program.target or ""
    answer = ask(path, workdir, environ, order.modules, script=script)
    return answer._replace(kind=program.kind, how=how, path=path)


def ask(
    path: str,
    workdir: str,
    environ: Mapping[str, str],
    modules: Sequence[str] = (),
    seconds: float = INTERPRETER_SECONDS,
    script: str = "",
) -> Interpreter:
    """Start an interpreter once and read what it says of itself, and of the syntax of a script."""
    where = workdir if os.path.isdir(workdir) else "/"
    try:
        ended = run_command([path, "-c", QUESTION, script, *modules], seconds, ANSWER_LIMIT, environ, where)
    except (OSError, ValueError) as error:
        return Interpreter(error="could not be started: %s" % error)
    if ended.code is None:
        return Interpreter(error="did not answer within %g s" % seconds)
    for line in ended.out.splitlines():
        words = line.split("\t")
        if words[0] == ANSWER:
            values = dict(w.split("=", 1) for w in words[1:] if "=" in w)
            lacks = values.pop("lacks", "").split(",")
            syntax = values.pop("syntax", "")[:300]
            return decode_parts(Interpreter, {**values, "lacks": list(filter(None, lacks)), "syntax": syntax})
    last = (ended.err.strip().splitlines() or ["no output"])[-1]
    return Interpreter(error="ended with code %d: %s" % (ended.code, last[:300]))
