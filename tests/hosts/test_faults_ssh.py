"""Hosts that ssh does not reach, and logins and configurations that get in the way."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hosts.bed import Bed, Host, Process, Unavailable
from tests.hosts.launching import BOUND, Launch, program
from tests.hosts.test_faults_start import done, refused, told
from tests.hosts.waiting import wait_until


@contextmanager
def kept(*files: Path) -> Iterator[None]:
    """What is changed in these files is put back."""
    before = {path: path.read_bytes() for path in files}
    try:
        yield
    finally:
        for path, content in before.items():
            path.write_bytes(content)


@pytest.fixture
def keep_client(bed4: Bed) -> Iterator[Bed]:
    """What the user has under ~/.ssh may be changed."""
    with kept(bed4.ssh_config(), bed4.dir / "known_hosts"):
        yield bed4


@pytest.fixture
def sshd_config(bed4: Bed) -> Iterator[Host]:
    """A host whose sshd_config may be changed."""
    host = bed4.host("h1")
    with kept(host.dir / "sshd_config"):
        yield host
    restart_sshd(host)


def sshd_of(host: Host) -> list[Process]:
    """What listens there for logins."""
    return [p for p in host.pids(system=True) if p.ppid == host.init and "/usr/sbin/sshd" in p.command]


def restart_sshd(host: Host) -> None:
    """boot.sh starts it again."""
    old = (host.dir / "sshd.log").stat().st_size
    for process in sshd_of(host):
        host.kill(process)

    def listening() -> bool:
        return b"Server listening" in (host.dir / "sshd.log").read_bytes()[old:]

    wait_until(listening, BOUND, f"sshd of {host.name} again")
    host.wait_ready()


def with_home(tmp_path: Path, *keys: str) -> dict[str, str]:
    """An environment whose user has just these keys and no agent."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    for key in keys:
        (home / ".ssh" / key).touch()
    return {"HOME": str(home), "SSH_AUTH_SOCK": ""}


# -- ssh's own failures ----------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [(), ("id_ed25519.pub",)], ids=["a key of another name", "a key"])
def test_hosts_that_do_not_know_the_key(bed4: Bed, tmp_path: Path, keys: tuple[str, ...]) -> None:
    """Both are named at once, each with its line."""
    strangers = [bed4.host(name).home() / ".ssh" / "authorized_keys" for name in ("h2", "h4")]
    with kept(*strangers):
        for path in strangers:
            path.write_text("")
        launch = Launch(bed4, tmp_path).start(program("tell.py"), env=with_home(tmp_path, *keys))
        verdict = refused(bed4, launch, "ssh-auth", None, code=4)
    assert "h2 and h4" in verdict["message"] and "Permission denied" in verdict["message"]
    lines = verdict["remedy"].splitlines()
    assert [line for line in lines if line.startswith("ssh-copy-id")] == ["ssh-copy-id h2", "ssh-copy-id h4"]
    assert "ssh-keygen" not in verdict["remedy"], "h1 takes the key, whatever its name"


def test_a_host_key_that_has_changed(keep_client: Bed, tmp_path: Path) -> None:
    known = keep_client.dir / "known_hosts"
    lines = known.read_text().splitlines(keepends=True)
    other = lines[0].split(" ", 1)[1]
    known.write_text("".join(f"{line.split(' ')[0]} {other}" if line.startswith("h2,") else line for line in lines))
    before = known.read_bytes()
    launch = Launch(keep_client, tmp_path).start(program("tell.py"))
    verdict = refused(keep_client, launch, "ssh-hostkey", "h2", code=4)
    assert "ssh-keygen -R h2" in verdict["remedy"]
    assert known.read_bytes() == before
    assert "StrictHostKeyChecking" not in launch.call("run", "--dry-run", "--hosts", "h1,h2", "--", "x.py").stdout


def test_a_host_key_that_nobody_knows(keep_client: Bed, tmp_path: Path) -> None:
    known = keep_client.dir / "known_hosts"
    known.write_text("".join(line for line in known.read_text().splitlines(keepends=True) if line[:3] != "h3,"))
    before = known.read_bytes()
    launch = Launch(keep_client, tmp_path).start(program("tell.py"))
    verdict = refused(keep_client, launch, "ssh-hostkey", "h3", code=4)
    assert "ssh h3 true" in verdict["remedy"]
    assert known.read_bytes() == before


def test_a_name_that_does_not_resolve(bed4: Bed, tmp_path: Path) -> None:
    launch = Launch(bed4, tmp_path).start(program("tell.py"), hosts="h1,no-such-host,h2")
    verdict = refused(bed4, launch, "name-resolution", "no-such-host", code=4)
    assert "Could not resolve hostname" in verdict["message"]


@pytest.mark.parametrize(
    ("fault", "says", "port"),
    [
        (Host.power_off, "h3", 22),
        (lambda host: host.drop_port(22), "did not answer within 2 s", 22),
        (lambda host: host.reject_port(22), "Connection refused", None),
    ],
    ids=["off", "filtered", "no sshd"],
)
def test_a_host_that_ssh_does_not_reach(
    bed4: Bed, tmp_path: Path, fault: Callable[[Host], None], says: str, port: int | None
) -> None:
    fault(bed4.host("h3"))
    launch = Launch(bed4, tmp_path).start(program("tell.py"), "--connect-timeout", "2s")
    verdict = refused(bed4, launch, "ssh-unreachable", "h3", code=4)
    assert says in verdict["message"] and "h3" in verdict["remedy"] and verdict["where"].get("port") == port


# -- logins that get in the way --------------------------------------------------------------------


def test_login_shells_that_print_banners(bed4: Bed, tmp_path: Path) -> None:
    """Another one on each host."""
    banner = "Welcome! It's $HOME *free*, <maintenance> on {Sunday}"
    missing = []
    for host, shell in zip(bed4.hosts, ("dash", "bash", "fish", "tcsh"), strict=True):
        try:
            host.set_shell("root", shell, banner)
        except Unavailable as error:
            missing.append(str(error))
            continue
        assert shell == "dash" or "maintenance" in bed4.ssh(host.name, "echo $0", check=True).stdout
    launch = Launch(bed4, tmp_path).start(program("tell.py"))
    done(bed4, launch)
    assert [told(launch, rank)["env"]["RANK"] for rank in range(4)] == ["0", "1", "2", "3"]
    assert not any("maintenance" in launch.log(rank) for rank in range(4))
    if missing:
        pytest.skip("; ".join(missing))


def test_a_login_shell_that_does_not_exist(bed4: Bed, tmp_path: Path) -> None:
    passwd = bed4.host("h3").dir / "etc/passwd"
    lines = passwd.read_text().splitlines(keepends=True)
    passwd.write_text("".join(f"{x.rsplit(':', 1)[0]}:/no/shell\n" if x.startswith("root:") else x for x in lines))
    launch = Launch(bed4, tmp_path).start(program("tell.py"))
    result = launch.over()
    assert result["exit"] == 4
    assert result["verdict"]["where"]["node"] == "h3"


def test_an_ssh_config_that_forces_terminals_commands_and_forwards(keep_client: Bed, tmp_path: Path) -> None:
    """And the forwarded port is taken, which would end the connection."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with keep_client.ssh_config().open("a") as file:
            file.write(f"  RequestTTY force\n  RemoteCommand echo wrong; sleep 100\n  LocalForward {port} h1:22\n")
            file.write("  ExitOnForwardFailure yes\n  RemoteForward 2222 h1:22\n  ControlPersist 60\n")
            file.write("  PermitLocalCommand yes\n  LocalCommand echo local\n")
        launch = Launch(keep_client, tmp_path).start(program("tell.py"))
        done(keep_client, launch)
    assert "SSH_TTY" not in told(launch, 1)["env"]


# -- many at once ----------------------------------------------------------------------------------


def test_an_sshd_that_takes_two_logins_at_a_time(sshd_config: Host, keep_client: Bed, tmp_path: Path) -> None:
    """Eight names of one machine: most connections are turned away at first, and tried again."""
    config = sshd_config.dir / "sshd_config"
    config.write_text(config.read_text() + "MaxStartups 2:100:2\n")
    restart_sshd(sshd_config)
    names = [f"n{i}" for i in range(8)]
    client = keep_client.ssh_config()
    aliases = "".join(f"Host {n}\n  HostName {sshd_config.address}\n  HostKeyAlias h1\n" for n in names)
    client.write_text(aliases + client.read_text())
    before = (sshd_config.dir / "sshd.log").stat().st_size
    launch = Launch(keep_client, tmp_path).start(program("tell.py"), hosts="n[0-7]")
    result = done(keep_client, launch)
    assert "MaxStartups" in (sshd_config.dir / "sshd.log").read_text()[before:]
    assert [told(launch, rank)["env"]["RANK"] for rank in range(8)] == [str(rank) for rank in range(8)]
    same = [f for f in result["findings"] if "the same machine" in f["message"]]
    assert same and all(f["status"] == "warn" for f in same)


@pytest.mark.parametrize("start_file", ["sleep 15\n", "cat > /dev/null\n"], ids=["hangs", "reads"])
def test_a_start_file_of_the_shell_that_lets_nothing_through(bed4: Bed, tmp_path: Path, start_file: str) -> None:
    """The host was said to be down."""
    bed4.host("h3").write_home("root", ".bashrc", start_file)
    launch = Launch(bed4, tmp_path).start(program("tell.py"), "--connect-timeout", "6s")
    verdict = refused(bed4, launch, "ssh-unreachable", "h3", code=4)
    assert "logged in" in verdict["message"] and "down" not in verdict["message"]
    assert "~/.bashrc" in verdict["remedy"]


def test_a_sshd_that_is_stopped(bed4: Bed, tmp_path: Path) -> None:
    host = bed4.host("h3")
    for process in sshd_of(host):
        host.stop(process)
    launch = Launch(bed4, tmp_path).start(program("tell.py"), "--connect-timeout", "6s")
    verdict = refused(bed4, launch, "ssh-unreachable", "h3", code=4)
    assert "takes connections" in verdict["message"] and "firewall" not in verdict["message"]
    restart_sshd(host)
