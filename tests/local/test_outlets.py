"""What goes out of a real run: scrapes of its port, its metrics file, notifications through apprise's own services."""

import ast
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests import forked
from tests.hosts.waiting import wait_until
from tests.local.running import BOUND, LocalRun
from tests.ports import free_port

PROGRAM = """
import os, pathlib, sys, time
names = ("WANDB_RUN_GROUP", "MLFLOW_RUN_NAME", "ALLRANKS_LAST_VERDICT")
print({name: os.environ.get(name) for name in names}, flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.1)
sys.exit(7 if os.environ["RANK"] == "1" and os.environ["ALLRANKS_ATTEMPT"] == "0" else 0)
"""


@pytest.fixture
def service() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook as apprise's json:// calls it: its address, and what it got. It takes long to note the first."""
    got: list[dict[str, Any]] = []
    seen: list[bytes] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(body)
            if seen[0] is body:
                time.sleep(1.0)  # long enough for a second notification, were it sent at the same time
            got.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"json://127.0.0.1:{server.server_port}/secret-path", got
    server.shutdown()
    thread.join()
    server.server_close()


def values(text: str) -> dict[str, float]:
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}


def test_a_run_is_scraped_and_tells_of_its_retry_and_its_end(
    tmp_path: Path, service: tuple[str, list[dict[str, Any]]]
) -> None:
    """A service that cannot be reached changes nothing but a note, and no address stands anywhere in the run.

    What happened first is told first, also by a slow service.
    """
    address, got = service
    port = free_port()
    options = ("--no-check", "--retries", "1", "--metrics-port", str(port), "--metrics-file", str(tmp_path / "prom"),
               "--notify", "HOOK,DEAD", "--env", "WANDB_PROJECT=p")  # fmt: skip
    run = LocalRun(tmp_path, PROGRAM, *options, HOOK=address, DEAD=f"json://127.0.0.1:{free_port()}/secret-path")
    run.until("rank-started", 2)

    def scraped() -> dict[str, float]:
        headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
        with urllib.request.urlopen(asked, timeout=BOUND) as answer:
            return values(answer.read().decode())

    wait_until(lambda: scraped().get("allranks_ranks_up") == 2, BOUND, "both ranks are up")
    of_first_attempt = run.directory / "logs" / "node_00_local0" / "rank_000.log"
    # rank 0 is ended with rank 1: it may be up and not yet have printed
    wait_until(lambda: of_first_attempt.is_file() and "\n" in of_first_attempt.read_text(), BOUND, "rank 0 has printed")
    (run.work / "go").touch()
    result = run.result()
    assert (result["exit"], len(result["attempts"])) == (0, 2)
    first, second = (
        ast.literal_eval(path.read_text().splitlines()[0])
        for path in (of_first_attempt, run.directory / "logs" / "attempt_1" / "node_00_local0" / "rank_000.log")
    )
    assert first == {"WANDB_RUN_GROUP": run.directory.name, "MLFLOW_RUN_NAME": None, "ALLRANKS_LAST_VERDICT": None}
    assert second == {**first, "ALLRANKS_LAST_VERDICT": result["attempts"][0]["verdict"]["message"]}
    final = values((tmp_path / "prom").read_text())
    assert (final["allranks_restarts_total"], final["allranks_exit_code"]) == (1, 0)
    late = re.search(r"--notify .*HOOK.*: the notification was not delivered", run.stderr)  # on a loaded machine
    assert [notice["type"] for notice in got] == ["warning", "success"] or late, run.stderr
    assert re.fullmatch(r"allranks run-\S+: retry", got[0]["title"]), got
    assert late or str(run.directory) in got[1]["message"]
    assert len(re.findall(r"--notify .*DEAD.*: the notification was not delivered", run.stderr)) == 1
    files = [path for path in run.directory.rglob("*") if path.is_file()]
    assert not [path for path in files if b"secret-path" in path.read_bytes()]


@pytest.mark.parametrize(
    ("settings", "mode", "words", "message"),
    [
        ("", 0o600, ("--notify", "slack"), 'write [notify] with slack = "URL"'),
        ('[notify]\nslack = "json://h/abc"\n', 0o644, ("--notify", "slack"), "hint: chmod 600"),
        ('[notify]\nslack = "json://h/abc"\n', 0o600, ("--notify", "slak"), "hint: --notify slack"),
        ("[notify]\nslack = 3\n", 0o600, ("--notify", "slack"), "expected the URL of a service"),
        ('[notify]\nslack = "abc"\n', 0o600, ("--notify", "slack"), "expected the URL of a service"),
        ("", 0o600, ("--notify", "https://hooks.example/abc"), "found a value that is not shown"),
        ("", 0o600, ("--notify", "https://hooks.example/abc"), "Others can read a URL here"),
        ("", 0o600, ("--notify", "a b"), "names of entries of [notify]"),
        ("", 0o600, ("--metrics-port", "http"), "a port such as 9400"),
        ("", 0o600, ("--metrics-port", "999999"), "a port such as 9400"),
        ("", 0o600, ("--metrics-port", "203.0.113.7:9400"), "cannot listen on 203.0.113.7 port 9400"),
        ("", 0o600, ("--metrics-file", "absent/file"), "expected a file in a directory that exists"),
    ],
)
def test_an_outlet_that_cannot_be_had_is_refused_before_the_run(
    tmp_path: Path, settings: str, mode: int, words: tuple[str, ...], message: str
) -> None:
    """No run directory is made, and an address is never quoted."""
    config = tmp_path / "config" / "allranks" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(settings)
    config.chmod(mode)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    done = forked.call(["run", "--local", "1", *words, "true"], env=environment, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "abc" not in done.stderr
    assert not (tmp_path / "runs").exists()
