"""From options, environment and allranks.toml to a RunSpec and a Cluster (reads files, asks the host)."""

from __future__ import annotations

import dataclasses
import getpass
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.cluster import Cluster
from allranks.cluster.build import make_cluster, set_aside, virtual_cluster
from allranks.cluster.hostfile import parse_host_argument, parse_hostfile
from allranks.cluster.slurm import allocation_cluster, read_allocation, refuse_step, require_nodes
from allranks.errors import ConfigError, HostfileError, UsageError
from allranks.findings import Finding
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved, refuse_other_engines, resolve
from allranks.settings.scripts import is_shell_script, launcher_in, script_of
from allranks.settings.table import engine_of, suggestion
from allranks.text import join_words

from .nodegroups import expand_groups, has_groups

CONFIG_NAME = "allranks.toml"
FILE_LIMIT = 1 << 20


def read_config(path: str | None, environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """The TOML file named by --config or ALLRANKS_CONFIG, else allranks.toml here if there is one."""
    wanted = path or environ.get("ALLRANKS_CONFIG")
    file = Path(wanted or CONFIG_NAME)
    if not wanted and not file.is_file():
        return {}, CONFIG_NAME
    return _read_toml(file), str(file)


def read_user_config(environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """The settings of the user for all projects, if there are any: ~/.config/allranks/config.toml."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "/nonexistent", ".config")
    file = Path(base) / "allranks" / "config.toml"
    if not file.is_file():
        return {}, ""
    return _read_toml(file), str(file)


def _read_toml(file: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):  # here: allranks.pyz has no tomli for Python 3.10
        import tomllib
    else:
        import tomli as tomllib
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_LIMIT + 1)
        if len(data) > FILE_LIMIT:
            raise ConfigError(f"{file}: larger than 1 MiB; is this an allranks.toml?")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None


def resolve_options(options: Mapping[str, object], config: str | None, renderer: str = "") -> Resolved:
    """The RunSpec, with a remark for each disagreement; without a target, the Slurm allocation that we are in.

    Raises UsageError for options that this target, or this renderer, has no use for, and for names of nothing.
    """
    document, source = read_config(config, os.environ)
    user_document, user_source = read_user_config(os.environ)
    resolved = resolve(
        options, os.environ, document, config_source=source, user_config=user_document, user_source=user_source
    )
    spec = resolved.spec
    if spec.launch.command:
        from allranks.plan.launchers.words import out_of_reach  # imported late: `status` needs no launchers

        resolved = dataclasses.replace(resolved, notes=(*resolved.notes, *out_of_reach(spec)))
    if (
        spec.target.hosts is None
        and spec.target.local is None
        and not spec.target.slurm
        and read_allocation(os.environ) is not None
    ):
        spec = spec.changed(slurm=True)
    engine = next((name for name in ("k8s", "sky", "slurm") if spec.value(name)), "")
    refuse_other_engines(options, engine_of(renderer) if renderer else engine, renderer)
    refuse_unknown_allowed(spec.preflight.allow)
    refuse_launching_script(spec)
    return dataclasses.replace(resolved, spec=spec)


def refuse_unknown_allowed(names: Sequence[str]) -> None:
    """UsageError where one is neither a check nor a cause."""
    if not names:
        return
    from allranks.diagnose.causes import CAUSES
    from allranks.gang.plugins import all_checks  # imported late: most runs allow nothing

    known = (*all_checks(), *CAUSES)
    for name in names:
        if name not in known:
            raise UsageError(unknown_name("--allow", name, "check or cause", known))


def refuse_launching_script(spec: RunSpec) -> None:
    """UsageError for a shell script that starts ranks itself, where each rank would run it."""
    script = script_of(spec.launch.command)
    if not script or spec.launch.launcher != "direct" or spec.launch.nproc == 1:
        return
    file = Path(spec.launch.workdir or ".") / script
    try:
        with file.open("rb") as stream:
            text = stream.read(FILE_LIMIT).decode("utf-8", "replace")
    except OSError:
        return  # a program of the nodes
    launcher = launcher_in(text) if is_shell_script(spec.launch.command, text) else ""
    if launcher:
        raise UsageError(
            f"{script} starts {launcher} itself, and every rank would run the script\n"
            f"hint: add --launcher command, which runs it once on each node"
        )


def refuse_contradictions(spec: RunSpec, cluster: Cluster) -> None:
    """UsageError where the pasted command of a launcher says other figures than the settings: `run` refuses them in
    its checks before ranks start."""
    if not spec.preflight.check:
        return
    for finding in _pasted_figures(spec, cluster):
        if finding.id not in spec.preflight.allow and finding.check not in spec.preflight.allow:
            raise UsageError(f"{finding.message}\nhint: {finding.remedy}")


def _pasted_figures(spec: RunSpec, cluster: Cluster) -> list[Finding]:
    """What the check of these figures would find. Ranks of a node that only the node knows are not compared."""
    from allranks.plan.launchers.settings import launcher_settings  # imported late: `status` needs no launchers
    from allranks.preflight.checks.accelerate_config import COUNTS, judge_options
    from allranks.preflight.facts import Request
    from allranks.preflight.figures import Ranks

    launching = launcher_settings(spec)
    slots = {node.name: node.slots for node in cluster.nodes}
    if spec.launch.nproc is None and None in slots.values():
        options = launching["options"]
        launching = {**launching, "options": {k: v for k, v in options.items() if k not in COUNTS}}
    port = spec.rendezvous.master_port
    fields = {"launching": launching, "nproc": spec.launch.nproc, "slots": slots, "master_port": port}
    request = Request(fields)
    return list(judge_options(request, Ranks(request, {}), {}))


def unknown_name(option: str, name: str, what: str, known: Iterable[str]) -> str:
    """What is wrong with a name that nothing has, with the one that was meant, or all."""
    names = list(known)
    meant = suggestion(name, names)
    if meant:
        return f"{option} {name}: there is no such {what}\nhint: {option} {meant}"
    return f"{option} {name}: there is no such {what}; there are {join_words(names)}"


def say_notes(resolved: Resolved) -> None:
    """Write on standard error where settings disagree; standard output is for the answer, with `--json` too."""
    for note in resolved.notes:
        sys.stderr.write(f"note: {note}\n")


def find_cluster(resolved: Resolved, spares: int = 0) -> Cluster:
    """The nodes of the target; without one, one virtual node. The last `spares` of them stand by."""
    if not spares:
        return _whole_cluster(resolved.spec, resolved.spec.target.nodes)
    spec = resolved.spec
    whole = _allocated(spec.target.nodes, spares) if spec.target.slurm else _whole_cluster(spec, None)
    return set_aside(whole, spares, spec.target.nodes, spec.launch.nproc)


def _whole_cluster(spec: RunSpec, first: int | None) -> Cluster:
    if spec.target.slurm:
        return _allocated(first)
    if spec.target.hosts is None:
        virtual = virtual_cluster(spec.target.local or 1)
        return make_cluster(virtual.nodes, source=virtual.source, first=first, is_local=lambda host: True)
    path = Path(spec.target.hosts)
    if path.is_file():
        nodes = parse_hostfile(_read_hostfile(path), spec.target.hosts)
        source = spec.target.hosts
    elif "/" in spec.target.hosts or spec.target.hosts.endswith((".txt", ".hosts")):
        raise HostfileError(f"{spec.target.hosts}: no such file; --hosts takes a hostfile or a list such as h1,h2")
    else:
        listed = expand_groups(spec.target.hosts, os.environ) if has_groups(spec.target.hosts) else spec.target.hosts
        nodes = parse_host_argument(listed)
        source = "--hosts"
    return make_cluster(nodes, source=source, first=first, is_local=this_machine(), caller=getpass.getuser())


def _allocated(count: int | None, spares: int = 0) -> Cluster:
    """So many nodes of our allocation, with spares, that no other run in it has; all of them where None."""
    allocation = read_allocation(os.environ)
    if allocation is None:
        raise UsageError("--slurm: this is no allocation; get one first: salloc --nodes=4 (only `run` submits a job)")
    refuse_step(os.environ)
    from allranks.engines.slurm.claims import claim  # imported late: few runs are Slurm's

    require_nodes(allocation, count)
    wanted = count + spares if count is not None else None
    free, taken = claim(allocation.job, allocation.nodes, wanted)
    chosen = [*free, *taken][:wanted]
    return allocation_cluster(allocation, chosen)


def _read_hostfile(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_LIMIT + 1)
    except OSError as error:
        raise HostfileError(f"{path}: {error.strerror}") from None
    if len(data) > FILE_LIMIT:
        raise HostfileError(f"{path}: larger than 1 MiB; is this a hostfile?")
    return data.decode("utf-8", "replace")


def this_machine() -> Callable[[str], bool]:
    """Tells whether a host of the list is this machine: its name, or an address of its own."""
    names = {"localhost", socket.gethostname(), socket.gethostname().split(".")[0]}

    def check(host: str) -> bool:
        if host in names:
            return True
        try:
            found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            return False
        return any(_is_own(family, address[0]) for family, _, _, _, address in found)

    return check


def _is_own(family: int, address: Any) -> bool:
    """An address is this machine's if a socket can be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
        return True
    except OSError:
        return False


def require_command(resolved: Resolved, verb: str = "allranks run") -> None:
    """The training command."""
    if not resolved.spec.launch.command:
        raise UsageError(f"there is no training command\nhint: {verb} --local 2 train.py")
