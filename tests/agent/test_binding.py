"""CPUs of ranks by --bind, on the topologies of real machines, beside what torch's own functions give there.

The trees have what public listings show: `nvidia-smi topo -m` of DGX A100 (2 EPYC of 64 cores, 8 NUMA nodes, GPUs on
nodes 3, 1, 7 and 5) and of DGX H100 (2 Xeon of 56 cores), `lspci -d 1002:74a1 -PP` of MI300X (AMD Instinct system
acceptance, "Mapping NIC to GPU NUMA Node"; 2 EPYC of 96 cores), and a server with 2 sockets and no GPU.
"""

import builtins
import os
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from allranks.agent.binding import bind
from allranks.agent.gpufacts import SeenGpus, addresses, own_gpus
from allranks.text import read_ranges

RULES = {"numa": "node", "cores": "exclusive", "socket": "socket", "core-complex": "core-complex"}


class Machine(NamedTuple):
    """`nodes`: CPUs of each NUMA node; `socket_nodes` of them are a socket, `shared` cores have one L3."""

    nodes: tuple[str, ...]
    gpus: dict[str, int]  # their addresses, with the NUMA node of each
    cores: int
    socket_nodes: int
    shared: int
    amd: bool = False


def nodes_of(count: int, each: int, cores: int) -> tuple[str, ...]:
    return tuple(
        f"{n * each}-{n * each + each - 1},{cores + n * each}-{cores + n * each + each - 1}" for n in range(count)
    )


def gpus(*places: tuple[str, int]) -> dict[str, int]:
    return {f"0000:{bus}:00.0": node for bus, node in places}


MACHINES = {
    "DGX A100": Machine(
        nodes_of(8, 16, 128),
        gpus(("07", 3), ("0f", 3), ("47", 1), ("4e", 1), ("87", 7), ("90", 7), ("b7", 5), ("bd", 5)),
        128, 4, 4,
    ),
    "DGX H100": Machine(
        nodes_of(2, 56, 112),
        gpus(("1b", 0), ("43", 0), ("52", 0), ("61", 0), ("9d", 1), ("c3", 1), ("d1", 1), ("df", 1)),
        112, 1, 56,
    ),
    "MI300X": Machine(
        nodes_of(2, 96, 192),
        gpus(("05", 0), ("2b", 0), ("5b", 0), ("65", 0), ("85", 1), ("ab", 1), ("db", 1), ("e5", 1)),
        192, 1, 8, amd=True,
    ),
    "two sockets": Machine(nodes_of(2, 32, 64), {}, 64, 1, 32),
}  # fmt: skip


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def build(root: Path, machine: Machine) -> Path:
    """The files of sysfs, proc and dev that are read."""
    system = root / "sys/devices/system"
    write(system / "cpu/online", f"0-{2 * machine.cores - 1}")
    write(system / "node/possible", f"0-{len(machine.nodes) - 1}")
    per_node = machine.cores // len(machine.nodes)
    for number, cpus in enumerate(machine.nodes):
        write(system / f"node/node{number}/cpulist", cpus)
    for cpu in range(2 * machine.cores):
        core = cpu % machine.cores
        first = core // machine.shared * machine.shared
        place = system / f"cpu/cpu{cpu}"
        write(place / "topology/thread_siblings_list", f"{core},{core + machine.cores}")
        write(place / "topology/physical_package_id", core // (per_node * machine.socket_nodes))
        for index, (level, kind, shared) in enumerate(
            (
                (1, "Data", f"{core},{core + machine.cores}"),
                (1, "Instruction", f"{core},{core + machine.cores}"),
                (3, "Unified", ",".join(f"{a}-{a + machine.shared - 1}" for a in (first, first + machine.cores))),
            )
        ):
            write(place / f"cache/index{index}/level", level)
            write(place / f"cache/index{index}/type", kind)
            write(place / f"cache/index{index}/shared_cpu_list", shared)
    for number, (address, node) in enumerate(machine.gpus.items()):
        write(root / "sys/bus/pci/devices" / address / "numa_node", node)
        if machine.amd:
            _, bus, rest = address.split(":")
            location = (int(bus, 16) << 8) + int(rest[:2], 16) * 8
            words = f"simd_count 1216\ndomain 0\nlocation_id {location}\nunique_id {4096 + number}\n"
            write(root / f"sys/class/kfd/kfd/topology/nodes/{number + 2}/properties", words)
            write(root / "dev/kfd", "")
        else:
            said = f"Model: \t\t NVIDIA\nGPU UUID: \t GPU-{number}a57\nBus Location: \t {address}\n"
            write(root / "proc/driver/nvidia/gpus" / address / "information", f"{said}Device Minor: \t {number}")
            write(root / f"dev/nvidia{number}", "")
    return root


def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, allowed: str = "") -> str:
    machine = MACHINES[name]
    cpus = read_ranges(allowed) or set(range(2 * machine.cores))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus)
    return str(build(tmp_path, machine))


@pytest.mark.torch
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [name for name, machine in MACHINES.items() if machine.gpus])
def test_ranks_get_the_cpus_that_torchrun_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, rule: str
) -> None:
    """Torch's own functions, which open files of /sys, read those of the tree."""
    root = on(tmp_path, monkeypatch, name)
    bound = bind(rule, list(range(8, 16)), {}, root)
    assert (bound.gpus, bound.allowed, bound.why) == (8, "", "")
    torch = pytest.importorskip("torch")
    of_torch = pytest.importorskip("torch.numa.binding")
    options = of_torch.NumaOptions(of_torch.AffinityMode(RULES[rule]))
    choose = of_torch._get_logical_cpus_to_bind_to  # noqa: SLF001
    places = [
        SimpleNamespace(pci_domain_id=0, pci_bus_id=int(address[5:7], 16), pci_device_id=0)
        for address in MACHINES[name].gpus
    ]
    real_open, real_list = builtins.open, os.listdir
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 8)
        patch.setattr(torch.cuda, "get_device_properties", places.__getitem__)
        patch.setattr(builtins, "open", lambda path, *more: real_open(f"{root}{path}", *more))
        patch.setattr(os, "listdir", lambda path: real_list(f"{root}{path}"))
        expected = {8 + gpu: choose(gpu_index=gpu, numa_options=options) for gpu in range(8)}
    assert {rank: read_ranges(cpus) for rank, cpus in bound.cpus.items()} == expected


def test_ranks_without_gpus_are_spread_over_the_numa_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = on(tmp_path, monkeypatch, "two sockets")
    assert bind("numa", [0, 1, 2, 3], {}, root).cpus == {
        0: "0-31,64-95", 1: "0-31,64-95", 2: "32-63,96-127", 3: "32-63,96-127",
    }  # fmt: skip
    assert bind("cores", [0, 1, 2, 3], {}, root).cpus == {
        0: "0-15,64-79", 1: "16-31,80-95", 2: "32-47,96-111", 3: "48-63,112-127",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "variables", "buses"),
    [
        ("DGX A100", {"CUDA_VISIBLE_DEVICES": "3,0"}, ["4e", "07"]),
        ("DGX A100", {"CUDA_VISIBLE_DEVICES": "GPU-5a57,1"}, ["90", "0f"]),
        ("DGX A100", {"CUDA_VISIBLE_DEVICES": ""}, []),
        ("DGX A100", {"HIP_VISIBLE_DEVICES": "3"}, ["07", "0f", "47", "4e", "87", "90", "b7", "bd"]),
        ("MI300X", {"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2"}, ["db"]),
        ("MI300X", {"ROCR_VISIBLE_DEVICES": "GPU-1001"}, ["2b"]),
    ],
)
def test_gpus_are_those_that_ranks_see(
    tmp_path: Path, machine: str, variables: dict[str, str], buses: list[str]
) -> None:
    root = build(tmp_path, MACHINES[machine])
    assert [address[5:7] for address in addresses(variables, str(root))] == buses


def test_a_device_that_a_job_does_not_have_is_not_counted(tmp_path: Path) -> None:
    root = build(tmp_path, MACHINES["DGX H100"])
    (root / "dev/nvidia0").unlink()
    assert addresses({"CUDA_VISIBLE_DEVICES": "0"}, str(root)) == ["0000:43:00.0"]


@pytest.mark.parametrize(
    ("seen", "ranks"),
    [
        ({8: ("a", "b"), 9: ("a", "b")}, {"a": [8], "b": [9]}),
        ({8: ("b",), 9: ("a",)}, {"a": [9], "b": [8]}),  # each rank has an environment of its own
        ({8: ("a", "b"), 9: ("b", "a")}, {"a": [8, 9]}),
        ({8: ("a",), 9: ("a",)}, {"a": [8, 9]}),  # both share the only one
        ({8: ("a", "b"), 9: ("a", "b"), 10: ("a", "b")}, {}),  # more ranks than GPUs: which shares which?
        ({8: (), 9: ("a", "b")}, {"b": [9]}),
    ],
)
def test_which_gpu_is_a_rank_s(seen: dict[int, tuple[str, ...]], ranks: dict[str, list[int]]) -> None:
    found = own_gpus({rank: SeenGpus(number, own) for number, (rank, own) in enumerate(seen.items())})
    assert found == ranks


def test_a_part_of_a_gpu_has_no_place(tmp_path: Path) -> None:
    root = str(build(tmp_path, MACHINES["DGX A100"]))
    with pytest.raises(ValueError, match="ranks see a part of a GPU, MIG-7"):
        bind("numa", [0], {"CUDA_VISIBLE_DEVICES": "MIG-7"}, root)


def test_a_cpuset_is_kept_to_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = on(tmp_path, monkeypatch, "DGX H100", "0-7,60-61")
    bound = bind("numa", list(range(8)), {}, root)
    assert (bound.cpus[0], bound.cpus[7], bound.allowed, bound.why) == ("0-7", "60-61", "0-7,60-61", "")
    few = bind("cores", list(range(8)), {}, root)
    assert (few.cpus[0], few.cpus[7]) == ("0-1", "60-61")
    assert few.why == "NUMA node 1 has fewer cores to use than ranks"


def test_a_rank_whose_node_is_not_of_the_cpuset_runs_where_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bind("numa", list(range(8)), {}, on(tmp_path, monkeypatch, "DGX H100", "0-7"))
    assert (sorted(bound.cpus), bound.why) == ([0, 1, 2, 3], "this process may use no CPU of NUMA node 1")
