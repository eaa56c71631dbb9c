"""A controller on one of the nodes: this allranks is put there over ssh, and this terminal shows what it prints (IO).

`--controller h1` starts `run --controller here` on h1: a daemon has the run, and what we show is a view of it there.
Later words about the run (`attach`, `logs`, `stop`, …) are said there too, by the same allranks. So there is one
follower, one place of the run's files, and nothing here that the run would miss. Where h1 has no ssh to the other nodes
and this machine has, it starts what dials h1 (`lent_ssh`).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO

from allranks.agent.processes import USER_SIGNALS
from allranks.cluster import Cluster, Node
from allranks.errors import NodeError, RunIsElsewhere, TransportError, UsageError
from allranks.gang.agent_archive import PYTHONS
from allranks.gang.session import environments
from allranks.gang.transport import die_with_the_controller
from allranks.gang.working_tree import ARCHIVE, TREE, Archive, pack_tree
from allranks.plan.environment import forwarded
from allranks.plan.joining import unforced, unforced_variables
from allranks.preflight.pasted_figures import refuse_contradictions
from allranks.protocol.codec import encode
from allranks.protocol.jsontext import write_json
from allranks.runs.known_directories import RunElsewhere, note_run_elsewhere
from allranks.settings import RunSpec
from allranks.settings.command_line import as_options, secret_values
from allranks.settings.layers import Resolved
from allranks.settings.roles import as_toml
from allranks.settings.runspec import FIRST_NODE, HERE, SSH, Launch
from allranks.text import join_names, join_words
from allranks.unpacked import LISTENS

from . import zipapp
from .dry_run import describe
from .lent_ssh import DOOR, lend_ssh
from .orphans import end_dead_runs
from .reachable_nodes import expand_groups, find_cluster, read_hostfile
from .remote_shell import RemoteShell, node_named, nodes_named

LOST = 255  # ssh's own exit code
KEPT_DAYS = 90  # that an allranks which is not used stays on a host
# A view that hears nothing of its node for so long ends, and the run goes on.
OPTIONS = ("LogLevel=ERROR", "ServerAliveInterval=5", "ServerAliveCountMax=4")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, *USER_SIGNALS.values())
OUTSIDE = ("hosts", "runs_dir", "controller")  # of the words there: they are said in another way
MOST_TRIED = 16  # nodes to which ssh is tried before the start, all at once
TRY = "timeout 8 %s </dev/null >/dev/null 2>&1 && echo %d &"
MAY_BECOME_CONTROLLERS = ("attach", "stop")

PREFIX = "unpacked-"
START = "start.py"  # beside the packages, so that Python finds them, and keeps their byte code
START_TEXT = b"""from allranks.unpacked import heed_signals_of_the_other_side

heed_signals_of_the_other_side()

from allranks.__main__ import main

main()
"""
DOOR_SCRIPT = "door.py"  # beside it
DOOR_TEXT = b"""from allranks.engines.lent_ssh import keep_door

keep_door()
"""
UNPACK = (
    "import base64, io, sys, tarfile; "
    "tarfile.open(fileobj=io.BytesIO(base64.b64decode(sys.stdin.read()))).extractall(sys.argv[1])"
)
FIND = f"""umask 077
h=${{XDG_STATE_HOME:-$HOME/.local/state}}/allranks
d=$h/{PREFIX}%s
mkdir -p "$h"
[ -d "$d" ] && touch "$d" && show place echo "$d"
for p in %s
do
"$p" -c 'import sys, zlib; sys.exit(sys.version_info < (3, 10))' </dev/null && show python echo "$p" && break
done
find "$h" -maxdepth 1 -name '{PREFIX}*' -mtime +{KEPT_DAYS} -exec rm -rf {{}} +"""
PUT = f"""mkdir "$d.$$" && "$p" -c '{UNPACK}' "$d.$$" <<'END' && mv "$d.$$" "$d" && show place echo "$d"
%s
END"""
# Makes the run directory as `RunDirectory.create` does, with the hosts, the roles and the words of the start.
MAKE = """make() {
%(enter)s && mkdir -p -- %(runs_dir)s && cd -- %(runs_dir)s || return
d=%(name)s n=1
until mkdir -m 700 -- "$d"
do
[ -d "$d" ] && [ $n -lt 1000 ] || return
n=$((n + 1)) d=%(name)s-$n
done
cd -- "$d" && printf '%%s' %(hosts)s >hosts.txt && printf '%%s' %(roles)s >roles.toml || return
printf '%%s' %(script)s >controller.sh && pwd
}
if d=$(make 2>&1)
then
show directory echo "$d"
else
show refused echo "$d"
fi"""


Program = tuple[str, str]  # an allranks on a host, as the first words of a command there: Python, and its script


def controller_elsewhere(resolved: Resolved) -> LaunchElsewhere | None:
    """Return the launch of a run whose controller is on another machine; None where it is here.

    Raise UsageError for a host that is none of the list, and for what cannot be had there.
    """
    spec = resolved.spec
    if spec.target.hosts is None:
        raise UsageError(
            f"--controller {spec.output.controller} needs --hosts: other runs have no host that this machine could ask"
            "\nhint: --detach goes on without this terminal"
        )
    if spec.output.controller == HERE:
        return None
    cluster = find_cluster(spec, spares=spec.recovery.spares)
    node = _chosen(cluster, spec.output.controller or "")
    if node.is_local:
        return None
    return LaunchElsewhere(resolved, cluster, node)


def _chosen(cluster: Cluster, wanted: str) -> Node:
    if wanted == FIRST_NODE:
        return cluster.nodes[0]
    nodes = cluster.everyone
    node = next((node for node in nodes if wanted in (node.name, node.host)), None)
    if node is None:
        names = join_words([node.name for node in nodes[:8]])
        raise UsageError(
            f"--controller {wanted}: not a host of {cluster.source} ({names})\nhint: --controller {FIRST_NODE}"
        )
    return node


class LaunchElsewhere:
    """A run whose controller is on one of its nodes."""

    def __init__(self, resolved: Resolved, cluster: Cluster, node: Node) -> None:
        self._resolved = resolved
        self._spec = resolved.spec
        self._node = node
        self._archive: Archive | None = None  # of --sync
        self._cluster_here = cluster
        self._cluster = _seen_from(cluster, node)

    def describe(self, as_json: bool) -> str:
        """Return what the controller there would do. Raise UsageError as `ControlledLaunch.describe` does."""
        refuse_contradictions(self._spec, self._cluster)
        described = describe(self._spec, self._cluster, as_json, self._node.name)
        if as_json:
            return described
        runs = os.path.join(self._workdir, self._spec.places.runs_dir)
        name = self._node.name
        how = f"ssh from {name} reaches the other nodes, or ssh from here starts what dials {name} where that cannot"
        return f"the controller would run on {name}, with the run directory in {runs} there\n{how}\n\n{described}"

    def run(self, quiet: bool, as_json: bool) -> int:
        """Start it, and show what it prints. Return its exit code. Raise AllranksError where nothing has begun."""
        if self._spec.launch.sync:
            self._archive = pack_tree(self._spec, os.getcwd())
        there = ControllerHost(self._node, self._spec.launch)
        program = there.program()
        lends, why = self._lends_ssh(there.shell)
        if why and not quiet:
            sys.stderr.write(f"note: {why}\n")
        if lends:
            self._lend()
        answer = there.shell.ask(MAKE % self._made(program, quiet, as_json))
        directory = _text(answer, "directory")
        if not directory:
            raise NodeError(
                f"{self._node.name} gives no run directory ({_text(answer, 'refused')[-200:]})\n"
                "hint: name directories that it has, with --workdir and --runs-dir"
            )
        name = os.path.basename(directory)
        hosts = self._hosts_everywhere() if lends else ""
        known = RunElsewhere(
            name,
            time.time(),
            there.destination,
            directory,
            os.path.abspath(self._spec.places.runs_dir),
            self._spec.launch.ssh_options,
            hosts,
        )
        note_run_elsewhere(known, os.environ)
        if self._archive is not None:
            there.put(f"{directory}/{ARCHIVE}", self._archive.from_its_beginning())
        if lends:
            there.lend_ssh(program, nodes_named(hosts))
        code = there.show(f"exec /bin/sh {shlex.quote(f'{directory}/controller.sh')}")
        if code == LOST:
            raise TransportError(
                f"the connection to {self._node.name} has ended. {name} goes on there\nhint: allranks attach {name}"
            )
        return code

    def _hosts_everywhere(self) -> str:
        """Return --hosts as it means the same in another directory."""
        hosts = self._spec.target.hosts or ""
        path = Path(hosts).expanduser()
        return str(path.absolute()) if path.is_file() else hosts

    def _lends_ssh(self, shell: RemoteShell) -> tuple[bool, str]:
        """Tell whether ssh from here starts what dials the controller, and say why: it is tried which ssh works."""
        name = self._node.name
        others = [node for node in self._cluster.everyone if not node.is_local][:MOST_TRIED]
        if not others:
            return False, ""
        answer = shell.ask(f"tries() {{\n{_tries(others, shell)}\n}}\nshow reached tries")
        from_there = _text(answer, "reached").split()
        lacking = [node for node in others if str(node.index) not in from_there]
        if not lacking:
            return False, f"{name} reaches the other nodes by its own ssh"
        script = _tries(lacking, shell)
        from_here = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True).stdout.split()
        names = join_names([node.name for node in lacking])
        if not from_here and not any(n.is_local for n in self._cluster_here.everyone):
            return False, f"neither {name} nor this machine has ssh to {names}"
        return True, f"{name} has no ssh to {names}, so ssh from here starts there what dials {name}"

    def _lend(self) -> None:
        """Do here what the controller would need ssh for, and have the nodes dial it."""
        spec = self._spec
        if spec.preflight.end_orphans:
            end_dead_runs(spec, self._cluster_here)
        reach = "dial" if spec.launch.reach == SSH else spec.launch.reach
        self._spec = spec.changed(end_orphans=False, reach=reach)

    @property
    def _workdir(self) -> str:
        return self._spec.launch.workdir or os.getcwd()

    def _made(self, program: Program, quiet: bool, as_json: bool) -> dict[str, str]:
        spec = self._spec
        or_home = " 2>/dev/null || cd" if spec.launch.sync else ""  # with --sync that machine may lack it
        enter = f"cd -- {shlex.quote(self._workdir)}{or_home}"
        words = [*program, "run", "--config=/dev/null", f"--controller={HERE}"]
        if quiet:
            words.append("--quiet")
        if as_json:
            words.append("--json")
        roles = () if spec.launch.ray else spec.launch.roles  # --ray makes its own
        options = as_options(spec, "run", (*OUTSIDE, *unforced(spec)))
        hosts, listed = _hosts_there(spec)
        variables = [f"export {name}={shlex.quote(value)}" for name, value in sorted(self._variables().items())]
        tree = []
        if self._archive is not None:
            tree = [f"export {TREE}={shlex.quote(write_json(encode(self._archive.tree)).decode())}"]
        script = [
            'rm -f -- "$0"',
            "d=${0%/*}",
            f"{enter} || exit",
            *variables,
            *tree,
            'export ALLRANKS_RUN_DIR="$d"',
            f"set -- {shlex.join(options)}",
            *(['set -- --roles="$d/roles.toml" "$@"'] if roles else []),
            f'exec {shlex.join(words)} --hosts={hosts} --runs-dir="${{d%/*}}" "$@"',
        ]
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime())
        values = {
            "runs_dir": spec.places.runs_dir,
            "name": f"{spec.places.name}-{stamp}",
            "hosts": listed,
            "roles": as_toml(roles) if roles else "",
            "script": "\n".join(script) + "\n",
        }
        return {"enter": enter, **{name: shlex.quote(text) for name, text in values.items()}}

    def _variables(self) -> Mapping[str, str]:
        """Return what the controller there needs of our environment: what ranks get, and where our interpreter is."""
        spec = self._spec
        places = environments(os.environ)
        found = {"VIRTUAL_ENV": places.virtual_env or places.own_environment, "CONDA_PREFIX": places.conda_prefix}
        size = self._resolved.expected_world_size
        if size is not None:
            found["WORLD_SIZE"] = str(size)
        known = {name: value for name, value in found.items() if value}
        return {
            **forwarded(os.environ, spec.launch.forward),
            **known,
            **unforced_variables(spec),
            **secret_values(spec),
        }


def _seen_from(cluster: Cluster, node: Node) -> Cluster:
    """Return the cluster as that node sees it: it is its own machine, and this one is another."""
    nodes = tuple(replace(one, is_local=one.index == node.index) for one in cluster.nodes)
    spares = tuple(replace(one, is_local=one.index == node.index) for one in cluster.spares)
    return replace(cluster, nodes=nodes, spares=spares)


def _hosts_there(spec: RunSpec) -> tuple[str, str]:
    """Return the word of --hosts in the script there, and what the file has that it may name."""
    hosts = spec.target.hosts or ""
    path = Path(hosts).expanduser()
    if path.is_file():
        return '"$d/hosts.txt"', read_hostfile(path)
    return shlex.quote(expand_groups(hosts, os.environ)), ""


def _tries(nodes: Sequence[Node], shell: RemoteShell) -> str:
    """Return commands that print the index of each node that ssh reaches."""
    tries = []
    for node in nodes:
        program, *options, _ = shell.transport.client(node)
        log_in = [program, "-o", "ConnectTimeout=5", *options, "true"]
        tries.append(TRY % (shlex.join(log_in), node.index))
    return "\n".join([*tries, "wait"])


class ControllerHost:
    """A host that has allranks, or gets it: words that are said there."""

    def __init__(self, node: Node, launch: Launch) -> None:
        self._node = node
        self._agent_python = launch.agent_python
        self._door = ""
        self.shell = RemoteShell(node, launch)

    @property
    def destination(self) -> str:
        """Return the host as `--on` takes it."""
        user = f"{self._node.user}@" if self._node.user else ""
        port = f":{self._node.port}" if self._node.port else ""
        return f"{user}{self._node.host}{port}"

    def program(self) -> Program:
        """Return the allranks there, put there where it is not yet. Raise NodeError where that cannot be."""
        files = {**zipapp.packed_files(), START: START_TEXT, DOOR_SCRIPT: DOOR_TEXT}
        digest = hashlib.sha256(b"".join(files[name] for name in sorted(files))).hexdigest()[:16]
        pythons = [self._agent_python] if self._agent_python else PYTHONS
        find = FIND % (digest, " ".join(map(shlex.quote, pythons)))
        answer = self.shell.ask(find)
        chosen = _text(answer, "python")
        if not chosen:
            raise NodeError(
                f"{self._node.name} has no Python 3.10 or newer, which a controller needs "
                f"(tried {join_words(list(pythons[:3]))})\nhint: --controller another host of the list, or leave it out"
            )
        if "place" not in answer:
            answer = self.shell.ask(f"{find}\n{PUT % base64.encodebytes(_archived(files)).decode()}")
        place = _text(answer, "place")
        if not place:
            raise NodeError(f"{self._node.name}: nothing can be written below ~/.local/state/allranks there")
        return chosen, f"{place}/{START}"

    def put(self, path: str, content: IO[bytes]) -> None:
        """Write a file there."""
        argv = self.shell.transport.client(self._node)
        command = f"exec /bin/sh -c {shlex.quote(f'exec cat >{shlex.quote(path)}')}"
        if subprocess.run([*argv[:-1], command], stdin=content, capture_output=True).returncode:
            raise NodeError(f"{self._node.name}: {path} cannot be written there\nhint: ssh {self._node.name} df -h")

    def lend_ssh(self, program: Program, nodes: Sequence[Node]) -> None:
        """Lend ssh of this machine to these nodes to a controller that a command there begins, while we are here."""
        self._door = secrets.token_hex(8)
        python, script = program
        door = os.path.join(os.path.dirname(script), DOOR_SCRIPT)
        lend_ssh(self.shell.become(shlex.join([python, door, self._door])), nodes, self.shell.transport)

    def show(self, command: str) -> int:
        """Run a shell command there in this terminal, and return its exit code; 255 where the connection has ended.

        Ctrl-C and other signals are for the command. Where this process dies, the command hears a hangup.
        """
        self.shell.close()
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        listen = "" if is_terminal else f"export {LISTENS}=1; "
        if self._door:
            listen += f"export {DOOR}={self._door}; "
        argv = self.shell.transport.client(self._node)
        own = [word for option in OPTIONS for word in ("-o", option)]
        remote = f"exec /bin/sh -c {shlex.quote(listen + command)}"
        argv = ["ssh", "-tt" if is_terminal else "-T", *own, *argv[2:-1], remote]
        return _carry(argv, is_terminal)


def _archived(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _carry(argv: Sequence[str], is_terminal: bool) -> int:
    """Run ssh to its end. On a terminal it takes the keys; else signals go as words to the other side."""
    process = subprocess.Popen(
        argv,
        stdin=None if is_terminal else subprocess.PIPE,
        start_new_session=not is_terminal,
        preexec_fn=die_with_the_controller,
    )
    if process.stdin is None:
        return process.wait()
    channel = process.stdin.fileno()

    def pass_on(number: int, frame: FrameType | None) -> None:
        try:
            os.write(channel, f"{signal.Signals(number).name}\n".encode())
        except OSError:  # the other side has ended
            return

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say_there(verb: str, words: Sequence[str], run: RunIsElsewhere) -> int:
    """Say a verb on the host of a run, in the directory of this name where it has one. Return its exit code."""
    host = run.host
    there = ControllerHost(node_named(host), Launch(ssh_options=run.ssh_options))
    program = there.program()
    if run.hosts and verb in MAY_BECOME_CONTROLLERS:
        with contextlib.suppress(UsageError):  # the host list is not there any more
            there.lend_ssh(program, nodes_named(run.hosts))
    go = f"cd {shlex.quote(os.getcwd())} 2>/dev/null || cd"
    code = there.show(f"{go}; exec {shlex.join([*program, verb, *words])}")
    if code == LOST:
        raise TransportError(
            f"the connection to {host} has ended\nhint: allranks {verb} {shlex.join(words)} --on {host}"
        )
    return code


def words_there(words: Sequence[str], run: RunIsElsewhere) -> list[str]:
    """Return the words of a command line as they are said on the machine of the run: --on is left out.

    >>> words_there(["-f", "--on", "h1", "pre"], RunIsElsewhere("h1", "pre"))
    ['-f', 'pre']
    >>> words_there(["pre", "-n", "3"], RunIsElsewhere("h1", "pre", "/runs/pre-1"))
    ['/runs/pre-1', '-n', '3']
    """
    kept = list(words)
    if "--on" in kept:
        del kept[kept.index("--on") : kept.index("--on") + 2]
    kept = [word for word in kept if not word.startswith("--on=")]
    if run.directory is None:
        return kept
    if run.wanted is None:
        return [*kept, run.directory]
    place = len(kept) - 1 - kept[::-1].index(run.wanted)
    return [*kept[:place], run.directory, *kept[place + 1 :]]


def _text(answer: Mapping[str, bytes], name: str) -> str:
    return answer.get(name, b"").decode("utf-8", "replace").strip()
