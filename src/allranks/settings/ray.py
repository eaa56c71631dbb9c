"""--ray is a preset of two roles: Ray on all nodes, and the command once on the first of them (pure).

ray      node 0 is the head, the others are its workers; ready once Ray has all nodes; its end is a failure
driver   on the first node, with RAY_ADDRESS; its end is that of the run
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..errors import UsageError
from .frameworks import Peeled
from .runspec import Role
from .tools import read_tool

RAY = "ray"  # the role, and its launcher
DRIVER = "ray-driver"  # the launcher of the command
LAUNCHERS = (RAY, DRIVER)
READY = "output:^Ray has all [0-9]+ nodes"  # agent/runner_ray.py prints it
PROGRAM = ("python", "-m", "ray.scripts.scripts")  # which the program `ray` runs
START = (*PROGRAM, "start")
OURS = ("address", "block", "head", "node-ip-address", "port", "temp-dir")
# `ray start` refuses these without --head (ray/scripts/scripts.py, head_only_flags), or they would be of no use.
HEAD_ONLY = ("include-dashboard", "dashboard-host", "dashboard-port", "ray-client-server-port", "autoscaling-config",
             "system-config", "redis-shard-ports")  # fmt: skip


def ray_roles(peeled: Peeled, start: Sequence[str], nproc: int | None, watch: bool) -> tuple[Role, ...]:
    """Give the roles of --ray. `start` are options of `ray start`, `nproc` GPUs of a node; `watch` for hangs.

    Raise UsageError for options that --ray sets itself, and for a command that starts ranks.
    """
    command = peeled.command
    if not command:
        raise UsageError(
            "--ray needs the command of the driver\nhint: allranks run --hosts hosts.txt --ray -- python train.py"
        )
    tool = read_tool(command)
    if tool is not None:
        raise UsageError(
            f"{tool.name} starts ranks, and Ray starts its own workers. Give the driver: --ray -- python train.py"
        )
    options = start_options(start)
    if command[0].rpartition("/")[2] == "ray":
        command = (*PROGRAM, *command[1:])  # of the interpreter that has Ray
        if command[len(PROGRAM) : len(PROGRAM) + 1] == ("job",) and not any(
            option.startswith("--include-dashboard") for option in options
        ):
            options = ("--include-dashboard=true", *options)  # which takes jobs
    if nproc is not None and not any(option.startswith("--num-gpus=") for option in options):
        options = (f"--num-gpus={nproc}", *options)
    head = (*START, *options)
    ray = Role(name=RAY, command=head, nproc=1, launcher=RAY, ready=READY, ends="never", hang=False)
    driver = Role(
        name="driver",
        command=command,
        nodes=1,
        with_=RAY,
        nproc=1,
        launcher=DRIVER,
        wrap=peeled.wrap_for(DRIVER, None),
        env=peeled.env,
        after=(RAY,),
        ends="run",
        hang=watch,
    )
    return ray, driver


def start_options(texts: Sequence[str]) -> tuple[str, ...]:
    """Read options of `ray start`, each as `--name=value` or `--name`; raise UsageError for what --ray sets.

    >>> start_options(["--num-cpus 2 --verbose"])
    ('--num-cpus=2', '--verbose')
    """
    options: list[str] = []
    for word in (word for text in texts for word in shlex.split(text)):
        if word.startswith("--"):
            options.append(word)
        elif options and "=" not in options[-1]:
            options[-1] += f"={word}"
        else:
            raise UsageError(f"--ray-start: {word} is not an option of ray start")
    for option in options:
        name = option[2:].partition("=")[0]
        if name in OURS:
            raise UsageError(f"--ray-start: --{name} is set by --ray itself. Leave it out")
    return tuple(options)


def name_of(role: Role, rank: int | None) -> str:
    """Name the part of Ray that a rank is: the head, or a worker. Other roles have the one name."""
    if role.launcher != RAY or rank is None:
        return role.name
    return "ray-worker" if rank else "ray-head"


def without_head_options(options: Sequence[str]) -> tuple[str, ...]:
    """Leave out what `ray start` refuses on a worker."""
    return tuple(option for option in options if option[2:].partition("=")[0] not in HEAD_ONLY)
