"""What nvidia-smi, amd-smi and rocm-smi print, in the forms of several versions."""

import pytest

from allranks.preflight import smi
from allranks.preflight.checks import gpu_throttle


@pytest.mark.parametrize(
    ("line", "index", "pci", "why"),
    [
        ("GPU 0000:05:00.0: GPU is lost.  Reboot the system to recover this GPU", "", "0000:05:00.0", "GPU is lost"),
        ("GPU0000:CB:00.0: Unknown Error", "", "0000:cb:00.0", "Unknown Error"),
        ("gpu 0000:08:00.0: Unknown Error", "", "0000:08:00.0", "Unknown Error"),
        ("GPU1: 0000:84:00.0: Unknown Error", "1", "0000:84:00.0", "Unknown Error"),
    ],
)
def test_a_lost_gpu_in_all_forms(line: str, index: str, pci: str, why: str) -> None:
    line = "Unable to determine the device handle for " + line
    assert smi.parse(line, ["index", "pci.bus_id"]).lost == [{"index": index, "pci": pci, "why": why}]


def test_rows_are_read_by_field_and_other_lines_are_passed_over() -> None:
    text = "WARNING: infoROM is corrupted at gpu 0000:18:00.0\n"
    text += "0, 00000000:18:00.0, NVIDIA H200, 28\n1, 00000000:2A:00.0\n"
    rows = smi.parse(text, ["index", "pci.bus_id", "name", "temperature.gpu"]).rows
    assert rows == [{"index": "0", "name": "NVIDIA H200", "temperature.gpu": "28", "pci": "0000:18:00.0"}]


@pytest.mark.parametrize("pci", ["00000000:9B:00.0", "0000:9b:00", "PCI:0000:9b:00", "0000:9b:00.0"])
def test_pci_addresses_have_one_form(pci: str) -> None:
    assert smi.short(pci) == "0000:9b:00.0"


@pytest.mark.parametrize("value", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "", None])
def test_no_value_in_all_forms(value: "str | None") -> None:
    assert (smi.value_of(value), smi.number(value)) == ("", None)


def test_json_after_warnings() -> None:
    assert smi.json_after_warnings('WARNING: User is missing groups\n[{"gpu": 0}]\n') == [{"gpu": 0}]
    assert smi.json_after_warnings("ERROR: no\n[not json\n") is None


def test_reasons_of_slow_clocks() -> None:
    assert gpu_throttle.decode(0x1 | 0x2 | 0x4 | 0x10 | 0x100) == ""
    assert gpu_throttle.decode(0x8).startswith("HW slowdown")
    assert gpu_throttle.decode(0x48).startswith("HW thermal slowdown")
    both = [reason.partition(" (")[0] for reason in gpu_throttle.decode(0xA8).split(", ")]
    assert both == ["SW thermal slowdown", "HW power brake"]
