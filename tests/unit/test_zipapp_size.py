"""allranks.pyz: a ConfigMap holds it, and it runs without anything but Python."""

import subprocess
import sys
from pathlib import Path

from allranks.backends import zipapp
from allranks.plan.render.kubernetes import OBJECT_LIMIT


def test_a_config_map_holds_it_with_room_to_grow() -> None:
    assert len(zipapp.build()) < 0.9 * OBJECT_LIMIT


def test_a_run_that_fails_ends_with_its_own_code_where_nothing_is_installed(tmp_path: Path) -> None:
    """-I -S: no site-packages, as in an image that has Python alone."""
    archive = tmp_path / "allranks.pyz"
    archive.write_bytes(zipapp.build())
    words = ["join", "--nnodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1", "--port", "0"]
    argv = [sys.executable, "-I", "-S", str(archive), *words[:-1], _free_port(), "--no-check", "--nproc", "1"]
    done = subprocess.run([*argv, "--", sys.executable, "-c", "raise SystemExit(3)"], cwd=tmp_path, timeout=120,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "VERDICT" in done.stdout


def _free_port() -> str:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
