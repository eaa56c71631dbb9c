"""The words after `allranks join` for a spec: what a scheduler has to start on every node (pure)."""

from __future__ import annotations

from allranks.errors import UsageError
from allranks.settings import RunSpec
from allranks.settings.command_line import as_options
from allranks.settings.table import option_name

SECRET = "ALLRANKS_JOIN_SECRET"  # a variable: what the nodes prove to each other
# What the objects around the command say: where it runs, in which directory, with which variables.
_OUTSIDE = """
    nodes nproc name workdir runs_dir fold role roles_file level only size timeout master_addr node_rank join_port
    secret_file allow_exec
"""
OUTSIDE = tuple(_OUTSIDE.split())

# Set for a run on pods or cloud machines, these would be left out in silence.
REFUSED = {
    "test": "Test with `allranks join --test SUITE`",
    "spares": "Ask for more --nodes, or set --retries",
    "hang_pattern": "Set --hang-timeout",
    "audit_data": "Use ssh or Slurm for the audit",
}


def join_words(spec: RunSpec, name: str) -> list[str]:
    """Options and command; the node's rank, the master's address and the secret are not among them."""
    for field, instead in REFUSED.items():
        if spec.value(field) != RunSpec().value(field):
            raise UsageError(f"{option_name(field)} is not for pods and cloud machines. {instead}")
    words = [f"--name={name}"]
    if spec.launch.nproc is not None or spec.cloud.gpus is not None:
        words.append(f"--nproc={spec.launch.nproc or gpu_count(spec)}")
    bare = spec.changed(env={}, forward=())  # the objects around the command set them
    return [*words, *as_options(bare, "join", (*OUTSIDE, *unforced(spec)))]


def unforced(spec: RunSpec) -> tuple[str, ...]:
    """Name the settings that an option would force upon the script: a timeout that is a default of its own."""
    if spec.limits.pg_timeout_forced:
        return ()
    return ("pg_timeout",)


def unforced_variables(spec: RunSpec) -> dict[str, str]:
    """Set what `join` and `run` read from their environment: a timeout that does not override the script's own."""
    weak = spec.limits.pg_timeout is not None and not spec.limits.pg_timeout_forced
    if not weak:
        return {}
    return {"COLOSSALAI_DIST_TIMEOUT": f"{spec.limits.pg_timeout:g}"}


def gpu_count(spec: RunSpec) -> int:
    """GPUs of a node; 0 where none were asked for."""
    if not spec.cloud.gpus:
        return 0
    return int(spec.cloud.gpus.rpartition(":")[2])
