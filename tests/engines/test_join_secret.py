"""The secret of a join: taken out of the environment, long enough, and asked for where strangers could take part."""

import pytest

from allranks.engines.join import SECRET, require_loopback, take_secret
from allranks.errors import UsageError


def test_ranks_do_not_inherit_the_secret(tmp_path):
    environ = {SECRET: "s" * 32, "HOME": "/root"}
    assert take_secret(None, environ) == b"s" * 32
    assert environ == {"HOME": "/root"}
    file = tmp_path / "secret"
    file.write_text("f" * 32 + "\n")
    assert take_secret(str(file), environ) == b"f" * 32


def asked(call, *words):
    with pytest.raises(UsageError) as error:
        call(*words)
    message, _, hint = str(error.value).partition("\n")
    assert hint.startswith("hint: run `openssl rand -hex 32` once") and SECRET in hint and "all nodes" in hint
    return message


def test_a_new_secret_is_made_once_for_all_nodes():
    assert asked(take_secret, None, {SECRET: "short"}).startswith("the join secret has 5 bytes")
    assert asked(require_loopback, "192.0.2.7", 29400).startswith("no join secret, and 192.0.2.7 is not a loopback")


def test_this_machine_alone_needs_none():
    require_loopback("127.0.0.1", 29400)
    with pytest.raises(UsageError, match="no-such-host"):
        require_loopback("no-such-host.invalid", 29400)
