"""A node asks NCCL's RAS: a server that speaks its protocol stands in for it, and a mapped file for libnccl."""

import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.agent.processes import read_process
from allranks.agent.sample import ask_ras
from allranks.protocol.node_names import NodeFiles

pytestmark = pytest.mark.processes

STATUS = "Job summary\n===========\n\n" + "x" * 100_000 + "\nWarnings\n========\n"
MAPS = """import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(1, flush=True)
time.sleep(600)
"""


class Service(socketserver.ThreadingTCPServer):
    """RAS as its client sees it; `mute` connections are accepted and never answered, as by a stopped process."""

    daemon_threads = True
    mute, greeting = 0, b"SERVER PROTOCOL 2\n"
    address: str
    heard: list[str]
    over: threading.Event

    def finish_request(self, request: Any, client_address: object) -> None:
        if self.mute:
            self.mute -= 1
            self.over.wait()
            return
        with request.makefile("r") as lines:
            for line in lines:
                self.heard.append(line.strip())
                if line.startswith("CLIENT PROTOCOL"):
                    request.sendall(self.greeting)
                elif line.startswith("TIMEOUT"):
                    request.sendall(b"OK\n")
                else:
                    request.sendall(STATUS.encode())
                    break


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(("127.0.0.1", 0), socketserver.BaseRequestHandler) as one:
        one.address, one.heard, one.over = f"127.0.0.1:{one.server_address[1]}", [], threading.Event()
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield one
        one.over.set()
        one.shutdown()


def asked(place: Path, address: str, name: str = "libnccl.so.2") -> str | None:
    """The answer to a rank that has a library of that name in its memory."""
    library = place / name
    library.write_bytes(b"\0" * 4096)
    process = subprocess.Popen([sys.executable, "-c", MAPS, str(library)], stdout=subprocess.PIPE, text=True,
                               env={"NCCL_RAS_ADDR": address})  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        found = read_process(process.pid)
        assert found is not None
        return ask_ras({0: found}, str(place))
    finally:
        process.kill()
        process.communicate()


def test_the_whole_text_comes_and_is_kept(service: Service, tmp_path: Path) -> None:
    assert asked(tmp_path, service.address) == STATUS
    assert Path(NodeFiles(str(tmp_path)).ras).read_text() == STATUS
    assert service.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 3", "VERBOSE STATUS"]


def test_a_stopped_process_that_accepts_is_passed_over(service: Service, tmp_path: Path) -> None:
    service.mute = 1
    assert asked(tmp_path, service.address) == STATUS


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "a..b:28028", "x" * 70 + ":28028"])
def test_an_address_where_nobody_listens_or_can_costs_the_sample_nothing(address: str, tmp_path: Path) -> None:
    """NCCL_RAS_ADDR is the program's: its stacks come whatever it says."""
    assert asked(tmp_path, address) is None


def test_nothing_is_asked_without_nccl(service: Service, tmp_path: Path) -> None:
    assert asked(tmp_path, service.address, "libother.so") is None and service.heard == []


def test_another_service_at_the_port_is_left_alone(service: Service, tmp_path: Path) -> None:
    service.greeting = b"220 mail.example.org ESMTP\n"
    assert asked(tmp_path, service.address) is None and "VERBOSE STATUS" not in service.heard
