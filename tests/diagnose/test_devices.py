"""Faults of GPUs and ports that begin in a run, and what of their counters explains a slow rank."""

import pytest

from allranks.diagnose.devices import Devices, device_reason, new_faults
from allranks.diagnose.slowdown import changes
from allranks.protocol.samples import DeviceCounters, GpuCounters, NodeUsage, PortCounters

GPU = GpuCounters("0000:07:00.0", 0.9, 30, 80, 1980, 1980, 0, 0, 16)
OTHER = GPU._replace(address="0000:0f:00.0")
PORT = PortCounters("mlx5_0/1", True, {"symbol_error": 0, "out_of_sequence": 0, "port_xmit_wait": 0})


def both(gpu: GpuCounters = GPU, port: PortCounters = PORT) -> Devices:
    """A node before and now."""
    gpu = gpu._replace(address=OTHER.address, ranks=(5,))
    return Devices(DeviceCounters((GPU, gpu), (port,)), DeviceCounters((GPU, OTHER), (PORT,)))


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (GPU._replace(xids=(48,)), ["GPU 1 of h2 (rank 5) has Xid 48: double-bit ECC error"]),
        (GPU._replace(xids=(79,), lost=True), ["GPU 1 of h2 (rank 5) has fallen off the bus (Xid 79)"]),
        (GPU._replace(lost=True), ["GPU 1 of h2 (rank 5) has fallen off the bus"]),
        (GPU._replace(ecc=2), ["GPU 1 of h2 (rank 5) counted 2 more uncorrected ECC errors"]),
        (GPU._replace(xids=(13, 43)), []),  # the program's own
    ],
)
def test_a_fault_of_a_gpu_names_its_rank_once(gpu: GpuCounters, words: list[str]) -> None:
    devices = both(gpu)
    found = list(new_faults("h2", devices.now, devices.before))
    assert [finding.message for finding in found] == words
    assert all((f.status, f.where.rank, f.where.gpu, f.where.node) == ("warn", 5, 1, "h2") for f in found)
    assert list(new_faults("h2", devices.now, devices.now)) == []


@pytest.mark.parametrize(
    ("port", "words"),
    [
        (PORT._replace(is_up=False), ["the link of mlx5_0/1 on h2 went down and is still down"]),
        (PORT._replace(counted={"link_downed": 1}), ["the link of mlx5_0/1 on h2 went down and is back"]),
        (PORT._replace(counted={"symbol_error": 9}), []),
    ],
)
def test_a_link_that_flaps(port: PortCounters, words: list[str]) -> None:
    devices = both(port=port)
    assert [f.message for f in new_faults("h2", devices.now, devices.before)] == words


HOT = GPU._replace(clock=1200, held=0x40)


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (HOT, "its GPU runs at 1200 MHz, the others at 1980. Heat (hardware thermal slowdown) holds it back"),
        (HOT._replace(held=0x80), "its GPU runs at 1200 MHz, the others at 1980. The power brake of its machine holds "
         "it back"),
        (HOT._replace(held=0x4), "its GPU runs at 1200 MHz, the others at 1980. Its power limit holds it back"),
        (HOT._replace(held=0x2), "its GPU runs at 1200 MHz, the others at 1980. Its clock was set"),
        (GPU._replace(pcie_width=4), "its GPU has 4 PCIe lanes, the others 16"),
        (GPU._replace(ecc=1), "its GPU counted 1 uncorrected ECC errors"),
        (GPU._replace(pcie_replays=500), "its GPU's PCIe link repeated 500 packets"),
        (GPU._replace(nvlink_errors=500), "its NVLinks counted 500 errors"),
        (HOT._replace(held=0x1), None),  # at rest: it waits for another
        (GPU._replace(held=0x4), None),  # as fast as the others at the same limit
    ],
)  # fmt: skip
def test_what_slows_a_gpu(gpu: GpuCounters, words: str | None) -> None:
    reason = device_reason(5, "h2", {"h1": both(), "h2": both(gpu)})
    assert (reason and reason.words) == words
    assert reason is None or (reason.is_of_node and "h2" in reason.remedy)


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        ({"symbol_error": 300}, "port mlx5_0/1 of h2 counted 300 symbol errors"),
        ({"out_of_sequence": 900, "retrans_pkts": 200}, "port mlx5_0/1 of h2 counted 1100 packets out of sequence or "
         "sent again"),
        ({"port_xmit_wait": 5_000_000}, "port mlx5_0/1 of h2 could not send for 5000000 ticks, the usual port for 100"),
        ({"port_xmit_wait": 500_000}, None),
    ],
)  # fmt: skip
def test_what_slows_a_port(counted: dict[str, int], words: str | None) -> None:
    port = PORT._replace(counted=counted)
    before = DeviceCounters((), (PORT._replace(counted=dict.fromkeys(counted, 0)),))
    usual = Devices(DeviceCounters((), (PORT._replace(counted={"port_xmit_wait": 100}),)), DeviceCounters((), (PORT,)))
    nodes = {"h1": usual, "h3": usual, "h2": Devices(DeviceCounters((), (port,)), before)}
    reason = device_reason(5, "h2", nodes)
    assert (reason and reason.words) == words


def test_a_slowdown_names_the_gpus_that_are_held_back_and_the_ports_that_lose_packets() -> None:
    def sample(t: float, gpu: GpuCounters, errors: int) -> NodeUsage:
        port = PORT._replace(counted={"symbol_error": errors})
        return NodeUsage(t=t, seconds=10.0, devices=DeviceCounters((GPU, gpu), (port,)))

    samples = [sample(t, GPU, 0) for t in (10.0, 20.0, 30.0)]
    samples += [sample(40.0, HOT, 1000), sample(50.0, HOT, 2000), sample(60.0, HOT, 3000)]
    assert [sentence for _, sentence in changes(31.0, {"h2": samples})] == [
        "h2: its ports count 100 errors and repeated packets a second, 0 before",
        "h2: 50% of its GPUs are held back by heat or power, 0% before",
    ]
