"""One table of kernel lines and one of Xids serve the check of a node and the diagnosis of a log."""

import re
from pathlib import Path

import pytest

from allranks.diagnose.causes import CAUSES
from allranks.diagnose.logs.lines import read_line
from allranks.diagnose.logs.sightings import Evidence
from allranks.diagnose.signatures import BY_ID, row_of
from allranks.diagnose.verdict import judge_logs
from allranks.diagnose.worlds import World
from allranks.findings import Verdict
from allranks.kernel_lines import KINDS, kernel_line_kind
from allranks.xid import FAULTS, OFF_BUS, RECOVERY, gravest_action, one_fault_each

EXAMPLES = [
    line.split(": ", 1)
    for line in (Path(__file__).parent / "diagnose/examples.txt").read_text().splitlines()
    if re.match(r"kernel-(?!async)", line)
]
HARMLESS = """\
amdgpu 0000:83:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block
amdgpu 0000:83:00.0: amdgpu: no uncorrectable hardware errors detected in umc block
amdgpu 0000:83:00.0: amdgpu: 3 correctable hardware errors detected in total in umc block
amdgpu 0000:83:00.0: amdgpu: GPU reset(3) succeeded!
[drm] amdgpu kernel modesetting enabled.
mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged
mlx5_core 0000:3b:00.0: mlx5_cmd_out_err:838:(pid 99): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5)
python[4713]: segfault at 0 ip 00007f0000c69996 sp 00007f0000fd7c30 error 4 in libexample.so[7f0000c00000+1000]
CPU: 3 PID: 4713 Comm: python Not tainted 6.8.0 #1
EXT4-fs (dm-0): mounted filesystem with ordered data mode
EXT4-fs (sda1): re-mounted. Opts: errors=remount-ro
blk_update_request: I/O error, dev nvme4n1, sector 0 op 0x3:(DISCARD) flags 0x800 phys_seg 1 prio class 0
blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
nvme nvme0: 16/0/0 default/read/poll queues
nfs: server 10.0.1.1 OK
rcu: Hierarchical RCU implementation.
TCP established hash table entries: 8192
"""


def judged(log: str) -> Verdict:
    """The verdict on a log."""
    lines = [line for number, text in enumerate(log.splitlines(), 1) for line in read_line(text, "job.log", number)]
    return judge_logs(Evidence.of(lines, lines[-20:]))


def test_check_and_diagnosis_take_a_line_for_the_same() -> None:
    assert {identity.removeprefix("kernel-") for identity, _ in EXAMPLES} == {k.id for k in KINDS if k.least == 1}
    for identity, text in EXAMPLES:
        for line in (text, f"[  812.345678] {text}", f"Mar  9 10:11:12 gpu-a kernel: {text}"):
            kind = kernel_line_kind(line)
            assert kind is not None and f"kernel-{kind.id}" == identity, line
            rows = [row_of(read.text) for read in read_line(line)]
            assert [row[0].id for row in rows if row] == [identity], line


@pytest.mark.parametrize("line", HARMLESS.splitlines())
def test_everyday_lines_are_no_faults(line: str) -> None:
    assert kernel_line_kind(line) is None
    rows = [row_of(read.text) for read in read_line(line)]
    assert not [row for row in rows if row and row[0].id.startswith("kernel-")]


def test_the_causes_of_kinds_exist_and_their_advice_has_a_place() -> None:
    for kind in KINDS:
        assert kind.cause in CAUSES and kind.source, kind.id
        assert kind.label in (*CAUSES, "kernel_log"), kind.id
        row = BY_ID.get(f"kernel-{kind.id}")
        if row is not None and row.fix:
            assert "{node}" in row.fix or "{" not in row.fix, kind.id


def test_a_device_is_no_node() -> None:
    (line,) = read_line("mlx5_core: Port module event[error]: module 2, Cable error, Unknown error")
    assert not line.node
    (line,) = read_line("[ 12.000000] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 28 LTSSM Fault Up")
    assert not line.node


# -- GPUs of AMD ---------------------------------------------------------------------------------------------

OF_NVIDIA = ("nvidia", "NVIDIA", "compute-sanitizer", "grep -i xid", "CUDA_LAUNCH", "CUDA_VISIBLE", "libnccl")
AMD_LOGS = {
    "cuda-out-of-memory": "[rank3]: torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB. GPU 3 has "
    "a total capacity of 63.98 GiB of which 4.00 MiB is free. Process 99 has 40.00 GiB memory in use. Of the allocated "
    "memory 20.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.",
    "cuda-device-unavailable": "RuntimeError: No HIP GPUs are available",
    "cuda-kernel-fault": "Memory access fault by GPU node-4 (Agent handle: 0x55ac14d27600) on address 0x7f9587e00000. "
    "Reason: Page not present or supervisor privilege.",
    "gpu-hardware-error": "HW Exception by GPU node-4 (Agent handle: 0x55ac14d27600) reason :GPU Hang",
    "ecc-error": "[ 12.000000] amdgpu 0000:83:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
    "gpu-fell-off-bus": "[ 12.000000] amdgpu 0000:83:00.0: amdgpu: device lost from bus!",
    "invalid-device-ordinal": "RuntimeError: HIP error: invalid device ordinal",
    "environment-mismatch": '"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"',
    "duplicate-gpu": "gpu-a:77:78 [0] /src/rccl/init.cc:1246 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both "
    "on CUDA device c000\nRCCL version : 2.22.3+hip6.4",
}


@pytest.mark.parametrize("cause", AMD_LOGS)
def test_a_log_of_an_amd_machine_is_answered_with_tools_of_amd(cause: str) -> None:
    verdict = judged(AMD_LOGS[cause])
    assert verdict.cause == cause, verdict.finding.message
    remedies = [verdict.finding.remedy, *(finding.remedy for finding in verdict.runners_up)]
    assert not [word for word in OF_NVIDIA for remedy in remedies if word in remedy], remedies


def test_the_same_log_of_nvidia_is_answered_with_tools_of_nvidia() -> None:
    verdict = judged(AMD_LOGS["invalid-device-ordinal"].replace("HIP", "CUDA"))
    assert verdict.cause == "invalid-device-ordinal" and "nvidia-smi" in verdict.finding.remedy


def test_no_cause_sends_an_amd_machine_to_a_tool_of_nvidia() -> None:
    for cause in CAUSES.values():
        assert not [word for word in OF_NVIDIA if word in cause.remedy(worlds=frozenset({World.AMD}))], cause.id


def test_a_bad_access_explains_the_reset_that_follows_it() -> None:
    verdict = judged(
        "[ 12.000000] amdgpu 0000:83:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:77)\n"
        "[ 12.100000] amdgpu 0000:83:00.0: amdgpu: GPU reset begin!\n"
    )
    assert verdict.cause == "cuda-kernel-fault"
    assert "gpu-hardware-error" in [finding.id for finding in verdict.runners_up]


# -- families of Xids ----------------------------------------------------------------------------------------


def test_xids_of_one_fault_are_one() -> None:
    assert one_fault_each([94, 63, 48, RECOVERY]) == [[48, 94, 63, RECOVERY]]
    assert one_fault_each([119, OFF_BUS, 48, RECOVERY]) == [[OFF_BUS, 48, 119, RECOVERY]], "all follow from the bus"
    assert one_fault_each([149, 74]) == [[74, 149]]
    assert one_fault_each([74, 48]) == [[48], [74]], "memory and links fail apart"
    assert one_fault_each([RECOVERY]) == [[RECOVERY]]


def test_every_xid_of_the_table_has_a_fault_of_its_own_or_a_family() -> None:
    for code in FAULTS:
        assert one_fault_each([code]) == [[code]]
    assert sorted(code for fault in one_fault_each(set(FAULTS) - {OFF_BUS}) for code in fault) == sorted(
        set(FAULTS) - {OFF_BUS}
    )
    assert gravest_action([48, 64]) == "replace"
    assert gravest_action([OFF_BUS, 48]) == "reboot"


def test_the_diagnosis_lets_the_first_xid_of_a_family_speak() -> None:
    verdict = judged(
        "[ 12.1] NVRM: Xid (PCI:0000:3b:00): 63, pid=77, Row Remapper: New row marked for remapping, reset gpu\n"
        "[ 12.2] NVRM: Xid (PCI:0000:3b:00): 48, pid=77, DBE (double bit error) ECC Error\n"
    )
    assert verdict.cause == "ecc-error" and "Xid 48" in verdict.finding.message
