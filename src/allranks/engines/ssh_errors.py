"""What ssh says when a channel cannot be opened → a finding with the remedy.

Texts are OpenSSH's own (sshconnect.c, sshconnect2.c, ssh.c, packet.c). A connection closed before
authentication is usually sshd's MaxStartups: worth another try.
"""

from __future__ import annotations

import re
import shlex

from allranks.cluster import Node
from allranks.cluster.nodes import ssh_words
from allranks.findings import Finding, Where
from allranks.gang.channel import DEBUG
from allranks.gang.transport import how_ended
from allranks.text import name_with, with_reason

_RETRY = re.compile(
    r"kex_exchange_identification|ssh_exchange_identification|Connection (closed|reset) by [^\n]{1,300} port \d",
)
_TEXTS: tuple[tuple[str, str], ...] = (
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|No \S{1,40} host key is known",
        "ssh-hostkey",
    ),
    (r"Permission denied \(|Too many authentication failures|no mutual signature", "ssh-auth"),
    (r"Could not resolve hostname", "name-resolution"),
    (
        r"Connection timed out|Operation timed out|No route to host|Network is unreachable|Connection refused"
        r"|Connection (closed|reset) by|Connection to \S{1,300} timed out|banner exchange",
        "ssh-unreachable",
    ),
)
_RULES = tuple((re.compile(pattern), cause) for pattern, cause in _TEXTS)
# What ssh says at LogLevel=DEBUG1 (sshconnect.c, sshconnect2.c), in lines without `debug1`.
AUTHENTICATED = ("Authenticated to ", "Transferred: ", "Bytes per second: ", "OpenSSH_", "Authenticated with partial")
_OFFERED = "debug1: Offering public key"
_USER = re.compile(r"^[^\s@]+@\S+: ")  # user@address, as the configuration has it: the node is named


def worth_another_try(stderr: str) -> bool:
    """Tell whether sshd hung up before it knew us (too many start at once)."""
    stderr = _errors(stderr)
    return bool(_RETRY.search(stderr)) and "Permission denied" not in stderr


def _errors(stderr: str) -> str:
    lines = stderr.splitlines()
    return "\n".join(line for line in lines if not line.startswith((DEBUG, *AUTHENTICATED)))


def explain(node: Node, stderr: str, code: int | None, have_key: bool) -> Finding:
    """Make the finding for an ssh client that ended before the node answered.

    `have_key`: there is a key of a usual name. One of another name is seen where ssh has offered it.
    """
    have_key = have_key or _OFFERED in stderr
    stderr = _errors(stderr)
    lines = [line.strip() for line in stderr.strip().splitlines() if line.strip()]
    last_line = "".join(lines[-1:])[:300]
    for pattern, cause in _RULES:
        if pattern.search(stderr):
            line_that_tells = next((line for line in lines if pattern.search(line)), last_line)[:300]
            return _finding(node, cause, _USER.sub("", line_that_tells), tuple(lines[-3:]), have_key)
    if code == 127 or "not found" in last_line or "No such file" in last_line:
        message = f"the login shell of {node.name} could not start /bin/sh: {last_line}"
        remedy = "check the account's login shell on the node"
        return Finding("remote-path-missing", "fail", message, remedy, Where(node=node.name), tuple(lines[-3:]))
    message = with_reason(f"{node.name}: ssh {how_ended(code)} before the node answered", last_line)
    remedy = f"try it by hand: ssh -T -o BatchMode=yes {ssh_words(node)} true"
    return Finding("ssh-unreachable", "fail", message, remedy, Where(node=node.name), tuple(lines[-3:]))


def silent(node: Node, seconds: float, stderr: str = "") -> Finding:
    """Make the finding for a node that let the connection hang: what it reached says who is silent."""
    who = f"{name_with(node.name, node.host)} did not answer within {seconds:g} s"
    port = node.port or 22
    longer = "or give it longer with --connect-timeout"
    to = ssh_words(node)
    if any(mark in stderr for mark in (AUTHENTICATED[0], "mux_client_request_session: master session")):
        message = (
            f"{who}. ssh has logged in, and no shell came: a start file of the login shell hangs or reads its input"
        )
        remedy = f"begin ~/.bashrc there with `case $- in *i*) ;; *) return ;; esac`, and try `ssh {to} true`"
    elif "Remote protocol version" in stderr:
        message = f"{who}. sshd answers on port {port}, and the login does not end: PAM, LDAP or a home may hang"
        remedy = f"try `ssh -v {to} true`, {longer}"
    elif "Connection established" in stderr:
        message = f"{who}. Port {port} takes connections, and no sshd speaks there: it is stopped or overloaded"
        remedy = f"look at sshd on the node, {longer}"
    else:
        message = f"{who}. The host is down, or a firewall drops ssh's port {port}"
        remedy = f"try `ping {node.host}`. Take the host out of the list, {longer}"
    return Finding("ssh-unreachable", "fail", message, remedy, Where(node=node.name, port=port))


def _finding(node: Node, cause: str, last_line: str, evidence: tuple[str, ...], have_key: bool) -> Finding:
    to = ssh_words(node)
    remedies = {
        "ssh-auth": ("" if have_key else "ssh-keygen -t ed25519\n") + f"ssh-copy-id {to}",
        "ssh-hostkey": f"check the key with the node's owner, then: ssh {to} true"
        + (f"   (a changed key: ssh-keygen -R {shlex.quote(node.host)})" if "CHANGED" in last_line else ""),
        "name-resolution": f"correct the name in the host list, or add {node.name} to /etc/hosts here",
        "ssh-unreachable": f"is the host up, and sshd on port {node.port or 22}? try: ssh {to} true",
    }
    return Finding(cause, "fail", f"{node.name}: {last_line}", remedies[cause], Where(node=node.name), evidence)
