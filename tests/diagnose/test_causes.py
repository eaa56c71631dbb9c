"""The table of causes: labels of the design, texts in good order."""

from __future__ import annotations

import re
import string

import pytest

from allranks.diagnose.causes import _WORDS, CAUSES, Cause, Charge, Ends, FixReader
from allranks.findings import Where

PLACES = {"node", "peer", "rank", "port", "interface", "gpu"}
LABELS = """
master-unreachable name-resolution hostname-resolves-to-loopback port-in-use port-blocked wrong-interface no-interface
peer-died rendezvous-timeout world-size-mismatch
nodes-train-apart rank-missing-or-duplicate orphan-process collective-mismatch straggler
collective-shape-mismatch uneven-data nccl-ib-error nccl-p2p-error nvlink-error fabric-manager shm-too-small
nccl-version-mismatch driver-version-mismatch environment-mismatch duplicate-gpu invalid-device-ordinal
cuda-device-unavailable cuda-out-of-memory host-out-of-memory k8s-out-of-memory gpu-hardware-error ecc-error
gpu-fell-off-bus cuda-kernel-fault program-exception unused-parameters-ddp missing-module missing-file disk-full
too-many-open-files memlock-limit permission-denied checkpoint-unreadable dataloader-worker-killed segfault-native
ssh-auth ssh-hostkey ssh-unreachable slurm-config slurm-preempted-or-timeout slurm-cancelled k8s-scheduling k8s-image
deepspeed-config accelerate-config proxy-env ipv6-problem mtu-or-packet-loss clock-skew bad-launch-arguments
node-network-down remote-path-missing rank-killed rank-exited-early data-not-split internal-error unknown
"""


def test_no_label_of_the_design_is_lost() -> None:
    """Users and their scripts know them; a further cause needs no line here."""
    assert set(LABELS.split()) <= set(CAUSES)


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
def test_a_row_says_what_it_is_and_what_to_do(cause: Cause) -> None:
    fields = {name for text in (cause.next_step, cause.fix) for _, name, _, _ in string.Formatter().parse(text)}
    assert fields - {None} <= PLACES | set(_WORDS)
    assert cause.meaning[0].islower() or cause.meaning.startswith(("/dev", "Accelerate", "DDP", "DeepSpeed", "GPU",
                                                                  "IPv6", "InfiniBand", "Kubernetes", "NVLink",
                                                                  "Python", "Slurm"))  # fmt: skip
    assert cause.next_step and cause.fix and "\n" not in cause.remedy()
    assert not re.search(r"\b(nobody|told|gone|eats)\b", f"{cause.meaning} {cause.fix} {cause.next_step}")
    assert cause.explains <= set(CAUSES) - {cause.id}


OF_A_SCHEDULER = re.compile(r"\b(sacct|scontrol|squeue|srun|kubectl|--mem|--sbatch)\b")
OF_OTHERS = re.compile(r"\(of a run|\(torchrun")


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
def test_a_fix_names_only_what_its_reader_has(cause: Cause) -> None:
    """On ssh hosts there is no sacct, and beside other launchers' logs no run of allranks."""
    of_run = cause.remedy(reader=FixReader.RUN)
    if not cause.id.startswith(("slurm", "k8s")) and cause.id != "world-size-mismatch":  # that one warns of srun
        assert not OF_A_SCHEDULER.search(of_run), of_run
    assert "kubectl" not in cause.remedy(reader=FixReader.SLURM) or cause.id.startswith("k8s")
    for reader in (FixReader.RUN, FixReader.SLURM, FixReader.SCHEDULED):
        assert not OF_OTHERS.search(cause.remedy(reader=reader)), reader
    assert "of a run" not in cause.remedy(reader=FixReader.LOGS)


def test_a_killed_rank_is_asked_after_where_its_nodes_come_from() -> None:
    cause = CAUSES["rank-killed"]
    assert "`sacct" in cause.remedy(reader=FixReader.SLURM) and "kubectl" not in cause.remedy(reader=FixReader.SLURM)
    for reader in (FixReader.SCHEDULED, FixReader.LOGS):
        assert "`sacct" in cause.remedy(reader=reader) and "`kubectl" in cause.remedy(reader=reader)


def test_no_two_causes_explain_each_other() -> None:
    for cause in CAUSES.values():
        assert not [c for c in cause.explains if cause.id in CAUSES[c].explains], cause.id


def test_a_remedy_names_the_place() -> None:
    where = Where(node="h2", peer="h1", rank=3, port=29500, interface="eth1", gpu=5)
    assert "h2" in CAUSES["ssh-auth"].remedy(where) and "29500" in CAUSES["port-in-use"].remedy(where)
    assert "h1` (jumbo)" in CAUSES["mtu-or-packet-loss"].remedy(where)
    assert "--rank 3`" in CAUSES["rank-exited-early"].remedy(where)
    assert "NODE" in CAUSES["ssh-auth"].remedy(), "a place that is not established stays a placeholder"
    assert "use LOCAL_RANK, not RANK" in CAUSES["invalid-device-ordinal"].remedy(where)


def test_a_longer_timeout_is_never_the_fix_for_what_is_refused_reset_or_unreachable() -> None:
    for cause in ("master-unreachable", "peer-died", "port-blocked", "wrong-interface", "port-in-use"):
        assert "timeout" not in CAUSES[cause].remedy().lower()


def test_allranks_is_never_charged_to_a_node() -> None:
    assert CAUSES["internal-error"].charge is Charge.ALLRANKS
    assert [c.id for c in CAUSES.values() if c.ends is Ends.INTERNAL] == ["internal-error"]
