"""The signs of NCCL_SOCKET_IFNAME, by table."""

import pytest

from allranks.protocol.interface_names import matches_interface


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("eth0", "eth", True), ("eth0", "=eth", False), ("eth0", "=eth0", True), ("eth0", "^eth", False),
        ("ib0", "^eth", True), ("eth0", "^=eth", True), ("eth0", "^=eth0", False), ("eth0", "ib,eth", True),
        ("eth0", "=^eth0", False), ("^eth0", "=^eth0", True), ("eth0", "^", False), ("eth0", "", True),
        ("eth0", "eth0:1", True),  # NCCL cuts a port off
    ],
)  # fmt: skip
def test_matching(name: str, pattern: str, expected: bool) -> None:
    assert matches_interface(name, pattern) is expected
