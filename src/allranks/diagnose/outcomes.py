"""What follows from a verdict: the command's exit code (pure). Whether it is tried again: `gang/policy.py`."""

from __future__ import annotations

from allranks.findings import Verdict

DONE, PROGRAM, CHECK, SERVICE, HANG, CTRL_C, STOPPED = 0, 1, 3, 4, 5, 130, 143

SERVICE_CAUSES = frozenset({
    "master-unreachable", "name-resolution", "hostname-resolves-to-loopback", "port-in-use", "port-blocked",
    "wrong-interface", "no-interface", "ssh-auth", "ssh-hostkey", "ssh-unreachable", "node-network-down",
    "orphan-process", "nccl-ib-error", "nvlink-error", "fabric-manager", "gpu-hardware-error", "ecc-error",
    "gpu-fell-off-bus", "slurm-preempted-or-timeout", "slurm-cancelled", "slurm-config", "k8s-scheduling", "k8s-image",
    "proxy-env", "ipv6-problem", "mtu-or-packet-loss",
})  # fmt: skip
"""A node, a link or a service failed, whatever the program then did."""

HANG_CAUSES = frozenset({
    "rendezvous-timeout", "collective-mismatch", "straggler",
    "uneven-data",
})  # fmt: skip
"""Ranks waited for others that did not come."""

NODE_CAUSES = frozenset({"unknown", "remote-path-missing", "environment-mismatch", "host-out-of-memory",
                         "peer-died", "too-many-open-files"})  # fmt: skip
"""A machine's affair where no program has failed: a guard was killed, an interpreter is absent, a limit is too low."""


def exit_code(verdict: Verdict | None, stop_reason: str | None, program_failed: bool) -> int:
    """The design's codes. `program_failed`: a rank ended with something else than 0."""
    if verdict is None:
        if stop_reason is not None:
            return CTRL_C if stop_reason == "ctrl-c" else STOPPED
        return PROGRAM if program_failed else DONE
    if verdict.cause in SERVICE_CAUSES:
        return SERVICE
    if verdict.cause in HANG_CAUSES and not _explained_by_program(verdict):
        return HANG
    if program_failed:
        return PROGRAM
    return SERVICE if verdict.cause in NODE_CAUSES else CHECK


def _explained_by_program(verdict: Verdict) -> bool:
    """A mismatch that torch reported as an exception, or ranks that lost one that was done: nothing hung."""
    said = {"collective-mismatch": " raised ", "uneven-data": "destroy_process_group"}
    return said.get(verdict.cause, "\n") in verdict.finding.message
