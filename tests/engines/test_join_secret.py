"""The secret of a join: given, or this user's own in a file that nobody else reads. No join is without one."""

import os
import stat
import subprocess
import threading

import pytest

from allranks.engines.joinsecret import (
    SECRET,
    is_this_machine,
    own_file,
    own_secret,
    own_secret_differs,
    secret_of,
    take_secret,
)
from allranks.errors import UsageError
from allranks.protocol.secure import Handshake


@pytest.fixture
def environ(tmp_path):
    session, config = tmp_path / "session", tmp_path / "config"
    session.mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(session), "XDG_CONFIG_HOME": str(config)}


def private(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_ranks_do_not_inherit_the_secret(tmp_path):
    environ = {SECRET: "s" * 32, "HOME": "/root"}
    assert take_secret(None, environ) == b"s" * 32
    assert environ == {"HOME": "/root"}
    assert take_secret(str(private(tmp_path / "secret", "f" * 32 + "\n")), environ) == b"f" * 32


def test_a_new_secret_is_made_once_for_all_nodes():
    with pytest.raises(UsageError) as error:
        take_secret(None, {SECRET: "short"})
    message, _, hint = str(error.value).partition("\n")
    assert message.startswith("the join secret has 5 bytes")
    assert hint.startswith("hint: run `openssl rand -hex 32` once") and SECRET in hint and "all nodes" in hint


def test_a_secret_file_that_others_may_read_is_refused(tmp_path):
    file = private(tmp_path / "my secret", "f" * 32)
    file.chmod(0o644)
    with pytest.raises(UsageError, match=r"others may read or change it \(mode 644\)\nhint: chmod 600 '.*/my secret'"):
        take_secret(str(file), {})
    link = tmp_path / "..data"
    link.symlink_to(file)
    file.chmod(0o400)
    assert take_secret(str(link), {}) == b"f" * 32  # as Kubernetes mounts one
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="not a regular file"):
        take_secret(str(tmp_path / "pipe"), {})


def test_nodes_of_one_host_share_a_secret_that_the_first_makes(environ):
    secrets = set()
    threads = [
        threading.Thread(target=lambda: secrets.add(secret_of(None, dict(environ), "127.0.0.1", 29400)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((value, made_at),) = secrets
    assert len(value) == 64
    assert made_at == f"{environ['XDG_RUNTIME_DIR']}/join-secret"
    assert stat.S_IMODE(os.stat(made_at).st_mode) == 0o600
    assert os.listdir(environ["XDG_RUNTIME_DIR"]) == ["join-secret"]


def test_nodes_with_one_home_share_a_secret(environ):
    value, made_at = secret_of(None, dict(environ), "192.0.2.7", 29400)
    assert made_at == f"{environ['XDG_CONFIG_HOME']}/allranks/join-secret"
    assert secret_of(None, dict(environ), "192.0.2.9", 29400).value == value
    assert secret_of(None, {**environ, SECRET: "s" * 32}, "192.0.2.7", 29400) == (b"s" * 32, "")
    hint = own_secret_differs(secret_of(None, dict(environ), "192.0.2.7", 29400), "h1")
    assert f"hint: scp h1:{made_at} {made_at}" in hint


def test_without_a_session_the_secret_lies_where_node_directories_do(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    environ = {"XDG_RUNTIME_DIR": "/nonexistent"}
    assert own_file(environ, one_host=True) == tmp_path / f"allranks-{os.getuid()}" / "join-secret"
    assert stat.S_IMODE((tmp_path / f"allranks-{os.getuid()}").stat().st_mode) == 0o700


def test_a_secret_that_another_could_have_put_there_is_not_taken(tmp_path):
    open_file = private(tmp_path / "open", "x" * 32)
    open_file.chmod(0o640)
    (tmp_path / "link").symlink_to(private(tmp_path / "real", "x" * 32))
    for name in ("open", "link"):
        with pytest.raises(UsageError, match=f"hint: rm {tmp_path}/{name}"):
            own_secret(tmp_path / name)


@pytest.mark.skipif(os.getuid() != 0, reason="a second user needs root")
def test_another_user_of_the_host_neither_reads_the_secret_nor_plants_one(environ, tmp_path):
    made_at = secret_of(None, dict(environ), "127.0.0.1", 29400).made_at
    seen = subprocess.run(["cat", made_at], user=65534, group=65534, extra_groups=[], capture_output=True, text=True)
    assert seen.returncode != 0 and not seen.stdout
    os.chown(made_at, 1234, 1234)
    with pytest.raises(UsageError, match="belongs to user 1234"):
        secret_of(None, dict(environ), "127.0.0.1", 29400)


def test_no_handshake_is_without_a_secret():
    for listens in (True, False):
        with pytest.raises(ValueError, match="a secret of 0 bytes"):
            Handshake(b"", listens)


def test_this_machine_is_told_from_others():
    assert is_this_machine("127.0.0.1", 29400)
    assert not is_this_machine("192.0.2.7", 29400)
    with pytest.raises(UsageError, match="no-such-host"):
        is_this_machine("no-such-host.invalid", 29400)
