"""Shared by the GPU checks: asks nvidia-smi, amd-smi or rocm-smi, and reads what they print.

Forms seen in public recordings: a GPU that is lost is a line `Unable to determine the device handle for GPU1:
0000:84:00.0: Unknown Error` (older: `GPU 0000:05:00.0`, `GPU0000:cb:00.0`, and nothing of the others); a field
without a value is `[N/A]`, `[Not Supported]`, `[Unknown Error]`, `[GPU is lost]`; a field that an older
nvidia-smi does not know is `Field "x" is not a valid field to query.`
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

from allranks.protocol.jsontext import Json
from allranks.protocol.records import NamedTuple
from allranks.text import first_line, join_names, name_with, plural

from .compare import remote
from .host import CouldNotLook, Host, Ran, base_name, decimal, linked_name, text_in

SECONDS = 60.0  # without persistence mode the driver sets up each GPU again for each call
MOST = 64
CSV = "--format=csv,noheader,nounits"
Row = Dict[str, str]
JsonObject = Mapping[str, Json]

_LOST = r"(?i)Unable to determine the device handle for GPU ?(?:(\d+): )?([0-9a-f]{4,8}:[0-9a-f]+:[0-9a-f.]+): (.+)"
_UNKNOWN_FIELD = r'Field "([^"]+)" is not a valid field to query'
_DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers
NVIDIA_ID = "0x10de"


class Refused(CouldNotLook):
    """nvidia-smi answered, and with no GPU: the driver is not loaded, does not fit, or is in error."""


class Answer(NamedTuple):
    """GPUs that answer, by field (always "index" and "pci"), and those that don't ("pci", "why", maybe "index")."""

    rows: List[Row]
    lost: List[Row]


# -- which GPUs the files of the node show ----------------------------------------------------------


def short(pci: str) -> str:
    """00000000:9B:00.0, 0000:9b:00 and PCI:0000:9b:00 are 0000:9b:00.0."""
    words = pci.strip().lower().replace("pci:", "").split(":")
    if len(words) != 3:
        return pci.strip().lower()
    domain, bus, device = words
    return f"{domain[-4:].rjust(4, '0')}:{bus}:{device if '.' in device else device + '.0'}"


def of_driver(host: Host) -> List[str]:
    """PCI addresses of GPUs that the NVIDIA driver holds and that have a device file in this container."""
    addresses = []
    for path in host.glob("/proc/driver/nvidia/gpus/*"):
        text = text_in(host, f"{path}/information", 4096)
        minor = re.search(r"Device Minor:\s*(\d+)", text)
        if minor is None or host.exists(f"/dev/nvidia{minor.group(1)}"):
            addresses.append(short(base_name(path)))
    return addresses[:MOST]


def on_bus(host: Host) -> Dict[str, str]:
    """{PCI address: name of its driver, "" where none} of NVIDIA's display and 3D controllers."""
    drivers = {}
    for path in host.glob("/sys/bus/pci/devices/*"):
        vendor = host.text(f"{path}/vendor", 16)
        if vendor == NVIDIA_ID and text_in(host, f"{path}/class", 16).startswith(_DISPLAY):
            drivers[short(base_name(path))] = linked_name(host, f"{path}/driver")
    return dict(list(drivers.items())[:MOST])


def has_nvidia(host: Host) -> bool:
    """There are NVIDIA GPUs for this user: device files, or what the driver lists."""
    return bool(host.glob("/dev/nvidia[0-9]*") or of_driver(host)) or host.facts.gpus.vendor == "nvidia"


# -- nvidia-smi ------------------------------------------------------------------------------------


def nvidia_smi(host: Host, *words: str) -> Ran:
    """Its run; raises CouldNotLook where it did not answer at all."""
    ran = host.run(["nvidia-smi", *words], SECONDS)
    if ran.code is None:
        raise CouldNotLook(ran.err)
    return ran


def table(host: Host, query: str) -> List[List[str]]:
    """Read the cells of a query such as `--query-compute-apps=…`, row by row."""
    out = nvidia_smi(host, query, CSV).out
    return [[cell.strip() for cell in line.split(", ")] for line in out.splitlines()]


def query(host: Host, fields: Sequence[str], instead: Optional[Mapping[str, str]] = None) -> Optional[Answer]:
    """Fields of all GPUs; None where the node has no NVIDIA GPU. A field that nvidia-smi does not know is replaced
    by its older name out of `instead`, or left out. Raises Refused with nvidia-smi's words where none answers."""
    if not has_nvidia(host):
        return None
    answer, ran = _query(host, fields, instead or {}, ())
    if not answer.rows and answer.lost:  # older ones stop at the first that is lost
        lost = {row["pci"] for row in answer.lost}
        rest = [pci for pci in of_driver(host) if pci not in lost]
        if rest:
            more, _ = _query(host, fields, instead or {}, ("-i", ",".join(rest)))
            answer = Answer(more.rows, answer.lost + more.lost)
    if not answer.rows and not answer.lost:
        raise Refused(words_of(ran))
    return answer


def _query(host: Host, fields: Sequence[str], instead: Mapping[str, str], which: Sequence[str]) -> Tuple[Answer, Ran]:
    columns = {field: field for field in ["index", "pci.bus_id", *fields]}  # as asked: as nvidia-smi knows it
    while True:
        ran = nvidia_smi(host, "--query-gpu=" + ",".join(columns.values()), CSV, *which)
        refused = re.search(_UNKNOWN_FIELD, ran.out + ran.err)
        name = next((asked for asked, field in columns.items() if refused and field == refused.group(1)), None)
        if name is None:
            return parse(ran.out + "\n" + ran.err, list(columns)), ran
        if columns[name] == name and name in instead:
            columns[name] = instead[name]
        else:
            del columns[name]


def parse(text: str, columns: Sequence[str]) -> Answer:
    """Rows of csv,noheader,nounits and lines about GPUs that do not answer; other lines are passed over."""
    rows: List[Row] = []
    lost: List[Row] = []
    for line in text.splitlines():
        match = re.search(_LOST, line)
        values = [value.strip() for value in line.split(", ")]
        if match:
            why = match.group(3).partition(".")[0].strip()[:100]
            lost.append({"index": match.group(1) or "", "pci": short(match.group(2)), "why": why})
        elif len(values) == len(columns) and values[0].isdecimal():
            row = {column: values[i] for i, column in enumerate(columns)}
            row["pci"] = short(row.pop("pci.bus_id", ""))
            rows.append(row)
    return Answer(rows[:MOST], lost[:MOST])


def words_of(ran: Ran) -> str:
    """Return the first line that a program printed."""
    return first_line(ran.out + "\n" + ran.err, 300) or f"it printed nothing and ended with {ran.code}"


def value_of(value: Optional[str]) -> str:
    """Read a field's value; empty where it has none: [N/A], N/A, [Not Supported], [Unknown Error], …"""
    text = (value or "").strip()
    if text.startswith("[") or text in ("N/A", "Not Supported", "Unknown Error", "Unknown"):
        return ""
    return text


def number(value: Optional[str]) -> Optional[float]:
    """Read a field's number; None where it has none."""
    try:
        return float(value_of(value))
    except ValueError:
        return None


# -- amd-smi, rocm-smi -----------------------------------------------------------------------------


def amd_smi(host: Host, *words: str) -> Optional[List[JsonObject]]:
    """One object a GPU, as amd-smi gives them with --json; None where it is not installed or finds no AMD GPU."""
    answer = _ask_rocm(host, "amd-smi", words)
    if isinstance(answer, Mapping):  # since ROCm 7
        answer = answer.get("gpu_data")
    if isinstance(answer, list):
        return [gpu for gpu in answer if isinstance(gpu, Mapping) and "gpu" in gpu][:MOST]
    return None


def rocm_smi(host: Host, *words: str) -> Optional[Dict[str, JsonObject]]:
    """{"card0": {…}, "system": {…}}; None where it is not installed or finds no AMD GPU."""
    answer = _ask_rocm(host, "rocm-smi", words)
    if isinstance(answer, dict):
        return {str(name): values for name, values in answer.items() if isinstance(values, dict)}
    return None


def _ask_rocm(host: Host, program: str, words: Sequence[str]) -> Json:
    has_amd = host.exists("/dev/kfd") and (host.facts.gpus.vendor == "amd" or host.glob("/dev/dri/renderD*"))
    if not has_amd or host.which(program) is None:
        return None
    ran = host.run([program, *words, "--json"], SECONDS)
    if ran.code is None:
        raise CouldNotLook(ran.err)
    answer = json_after_warnings(ran.out)
    if not isinstance(answer, (dict, list)):
        raise CouldNotLook(words_of(ran))
    return answer


def json_after_warnings(text: str) -> Json:
    """Decode the JSON that stands after warnings; None where there is none."""
    for match in re.finditer(r"^[\[{]", text, re.MULTILINE):
        try:
            answer: Json = json.JSONDecoder().raw_decode(text[match.start() :])[0]
        except ValueError:
            continue
        return answer
    return None


def at(value: Json, *keys: str) -> Json:
    """Look up a value inside objects; None where one of them is absent."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def text_at(value: Json, *keys: str) -> str:
    """Look up a text inside objects; empty where it is absent or N/A."""
    return value_of(str(at(value, *keys) or ""))


def integer(value: Json) -> Optional[int]:
    """Of amd-smi's `3`, `"3"` or `{"value": 3, "unit": "MB"}`; None of "N/A"."""
    if isinstance(value, dict):
        value = value.get("value")
    return decimal(str(value))


# -- words -----------------------------------------------------------------------------------------


class HasPlace(Protocol):
    """What names a GPU: its index, None where it is not known, and its PCI address."""

    @property
    def gpu(self) -> Optional[int]:
        """The index."""

    @property
    def pci(self) -> str:
        """The address; empty where it is not known."""


class GpuState(NamedTuple):
    """A GPU by index or address, what ails it, and what tells of it."""

    gpu: Optional[int] = None
    pci: str = ""
    state: str = ""
    detail: str = ""


def which_gpus(gpus: Sequence[HasPlace]) -> str:
    """`GPU 3 (0000:9b:00.0)`, `GPUs 0, 3 and 5`."""
    gpu = gpus[0]
    if len(gpus) > 1:
        return f"GPUs {join_names([one.pci if one.gpu is None else str(one.gpu) for one in gpus])}"
    if gpu.gpu is None:
        return f"the GPU at {gpu.pci}"
    return name_with(f"GPU {gpu.gpu}", gpu.pci)


def gpus_of(node: str, gpus: Sequence[HasPlace], one: str = "is", many: str = "are") -> str:
    """Name GPUs of a node with their verb: `GPUs 0 and 3 of h1 are`."""
    return f"{which_gpus(gpus)} of {node} {plural(len(gpus), one, many)}"


def gpu_of(row: Row, pci: str = "") -> Tuple[Optional[int], str]:
    """Index and address of the GPU that a row of nvidia-smi is about; `pci` stands for an address that it lacks."""
    return decimal(row.get("index")), row.get("pci", pci)


def reset(node: str, gpus: Sequence[HasPlace]) -> str:
    """Write the command that resets these GPUs, or all where none of them has an index."""
    indices = [str(gpu.gpu) for gpu in gpus if gpu.gpu is not None]
    return remote(node, "sudo nvidia-smi -r", *(["-i", ",".join(indices)] if indices else ()))


def by_vendor(vendor: Optional[str], nvidia: str, amd: str) -> str:
    """Choose a command by the maker of a node's GPUs."""
    return amd if vendor == "amd" else nvidia


listing = partial(by_vendor, nvidia="nvidia-smi -L", amd="amd-smi list")
overview = partial(by_vendor, nvidia="nvidia-smi", amd="amd-smi process")  # who uses the GPUs


def driver_log(node: str, pattern: str) -> str:
    """Write the command that shows what the kernel logged of the driver."""
    return f"ssh {node} 'sudo dmesg -T | grep -i {pattern}'"
