"""The table of causes: labels of the design, texts in good order."""

import ast
import importlib
import json
import re
import string
from pathlib import Path
from typing import Any

import pytest

import allranks
from allranks.diagnose.causes import _PLACEHOLDERS, _WORDS, CAUSES, Cause, Charge, Ends, FixReader, in_place
from allranks.diagnose.worlds import _TOOLS, ACCELERATORS, NOWHERE, World, read_worlds
from allranks.findings import Where

FIELDS = {*_PLACEHOLDERS, *_WORDS, *_TOOLS}
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


TESTS = Path(__file__).parents[1]
PACKAGE = Path(allranks.__file__).parent
# What the words of a finding that fails are called where one is made; the place of its id, and of its status.
MAKERS = {"Finding": (0, 1), "fail": (0, None), "fail_if": (1, None)}
# Ids that are no causes: one of a site, and those that the audit of data judges (data-not-split).
WITHOUT_A_CAUSE = {"some-check", "data-same-samples"}


def written_ids(path: Path) -> set[str]:
    """The ids of findings that fail, as far as a module writes them down."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    made = [(call, *MAKERS[ast.unparse(call.func)]) for call in calls if ast.unparse(call.func) in MAKERS]
    if not made:
        return set()
    name = ".".join(("allranks", *path.relative_to(PACKAGE).with_suffix("").parts))
    values = vars(importlib.import_module(name))
    texts = set()
    for call, id_at, status_at in made:
        if len(call.args) <= id_at or (status_at is not None and "fail" not in ast.unparse(call.args[status_at])):
            continue
        if isinstance(call.args[id_at], ast.JoinedStr):  # tests of collectives: CAUSES_OF_TESTS of gang/tested.py
            continue
        for word in ast.walk(call.args[id_at]):
            if isinstance(word, ast.Constant) or (isinstance(word, ast.Name) and word.id in values):
                text = eval(ast.unparse(word), values)
                texts |= {text} if isinstance(text, str) else set()
    return texts


def failed_ids(value: Any) -> set[str]:
    """The ids of the failed findings in a document."""
    if isinstance(value, list):
        return {id_ for item in value for id_ in failed_ids(item)}
    if not isinstance(value, dict):
        return set()
    own = {str(value["id"])} if value.get("status") == "fail" and "id" in value else set()
    return own | {id_ for item in value.values() for id_ in failed_ids(item)}


def test_every_finding_that_fails_has_a_cause() -> None:
    """A verdict takes its cause from it; without one a refused start was called "cause unknown"."""
    written = {path: written_ids(path) - set(CAUSES) for path in PACKAGE.rglob("*.py")}
    assert {str(path): ids for path, ids in written.items() if ids} == {}
    assert len({id_ for path in PACKAGE.rglob("*.py") for id_ in written_ids(path)}) > 20, "the reader finds them"
    shown = {id_ for path in TESTS.rglob("*.json") for id_ in failed_ids(json.loads(path.read_text() or "null"))}
    assert shown - set(CAUSES) == WITHOUT_A_CAUSE


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
def test_a_row_says_what_it_is_and_what_to_do(cause: Cause) -> None:
    columns = [column for worlds in ((), *((w,) for w in cause.worlds)) for column in [cause.column(frozenset(worlds))]]
    texts = [text for column in columns for text in (column.next_step, column.fix)]
    fields = {name for text in texts for _, name, _, _ in string.Formatter().parse(text)}
    assert fields - {None} <= FIELDS
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


# What only one kind of accelerator, fabric or starter has: no other world's fix may name it.
ONLY = {
    "NVIDIA": r"nvidia|\bCUDA_|compute-sanitizer|PYTORCH_ALLOC_CONF|\bxid\b|TORCH_NCCL|\bNCCL_",
    World.AMD: r"amd-smi|rocm-smi|HIP_VISIBLE|rocgdb|amdgpu|/dev/kfd",
    World.ASCEND: r"npu-smi|hccn_tool|ASCEND|PYTORCH_NPU|davinci|\bascend\b",
    World.XPU: r"xpu-smi|ZE_AFFINITY|CCL_ATL|sycl-ls",
    World.TPU: r"tpu-info|TPU_|gcloud",
    World.GAUDI: r"hl-smi|HABANA|habanalabs",
}
# On AMD torch and RCCL keep the names of CUDA and NCCL.
SHARED = {World.AMD: r"nvidia|compute-sanitizer|\bxid\b|CUDA_VISIBLE"}


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
@pytest.mark.parametrize("world", ACCELERATORS, ids=[w.name for w in ACCELERATORS])
def test_no_fix_names_a_tool_of_another_accelerator(cause: Cause, world: World) -> None:
    remedy = cause.remedy(worlds=frozenset({world}))
    foreign = [pattern for owner, pattern in ONLY.items() if owner not in (world, "NVIDIA")]
    foreign.append(SHARED.get(world, ONLY["NVIDIA"]))
    assert [found[0] for pattern in foreign for found in [re.search(pattern, remedy)] if found] == []


def test_what_a_fix_has_no_name_for_stays_as_it_is_written() -> None:
    """A site's own fix may have braces of its own."""
    where = Where(node="h1", rank=3, pid=77, role="trainer", nodes=("h1",))
    assert in_place("on {node}: kill {pid}, {role} of {nodes}", where) == "on h1: kill {pid}, {role} of {nodes}"


def test_a_fix_on_efa_is_not_that_of_infiniband() -> None:
    infiniband = CAUSES["nccl-ib-error"].remedy()
    efa = CAUSES["nccl-ib-error"].remedy(worlds=frozenset({World.EFA}))
    assert "ibstat" in infiniband and "efa" not in infiniband
    assert "fi_info -p efa" in efa and "/dev/infiniband" in efa and "outbound" in efa
    assert "ibstat" not in efa and "NCCL_IB" not in efa
    assert "NCCL_IB_GID_INDEX to the index" in CAUSES["nccl-ib-error"].remedy(worlds=frozenset({World.ROCE}))


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
def test_ray_without_kubernetes_is_not_sent_to_kubectl(cause: Cause) -> None:
    remedy = cause.remedy(reader=FixReader.LOGS, worlds=frozenset({World.RAY}))
    assert "kubectl" not in remedy or cause.id.startswith("k8s")
    assert "sacct" not in remedy or cause.id.startswith("slurm")


@pytest.mark.parametrize(
    ("text", "worlds"),
    [
        ("step 1", NOWHERE),
        ("RuntimeError: NPU out of memory. Tried to allocate 2 GiB", {World.ASCEND}),
        ("[ERROR] HCCL(7,python) socket timeout", {World.ASCEND}),
        ("habana_frameworks/torch/distributed/hccl/process_group_hccl_base.cpp", {World.GAUDI}),
        ("NCCL WARN NET/OFI Couldn't open AV", {World.EFA}),
        ("NCCL INFO NET/OFI Selected Provider is cxi", NOWHERE),
        ("NET/IB : Using [0]mlx5_0:1/RoCE", {World.ROCE}),
        ("HIP error: invalid device ordinal", {World.AMD}),
        ("CUDA error: invalid device ordinal, beside hipError in a comment", NOWHERE),
        ("(raylet) node_manager.cc:3064: 2 Workers killed", {World.RAY}),
        ("The worker may have exceeded K8s pod memory limits.", NOWHERE),
        ("UR_RESULT_ERROR_DEVICE_LOST", {World.XPU}),
        ("libtpu.so version", {World.TPU}),
        ("slurmstepd: error: *** STEP 7.0", {World.SLURM}),
    ],
)
def test_the_world_of_a_text(text: str, worlds: set[World]) -> None:
    assert read_worlds([text]) == worlds
