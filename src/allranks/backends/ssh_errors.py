"""What ssh says when it fails → a finding with the remedy (pure).

Texts are OpenSSH's own (sshconnect.c, sshconnect2.c, ssh.c, packet.c). A connection closed before
authentication is usually sshd's MaxStartups: worth another try.
"""

from __future__ import annotations

import re
import shlex

from allranks.cluster import Node
from allranks.findings import Finding, Where

_RETRY = re.compile(
    r"kex_exchange_identification|ssh_exchange_identification|Connection (closed|reset) by [^\n]+ port \d+",
)
_RULES: tuple[tuple[str, str], ...] = (
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|No \S+ host key is known",
        "ssh-hostkey",
    ),
    (r"Permission denied \(|Too many authentication failures|no mutual signature", "ssh-auth"),
    (r"Could not resolve hostname", "name-resolution"),
    (
        r"Connection timed out|Operation timed out|No route to host|Network is unreachable|Connection refused"
        r"|Connection (closed|reset) by|Connection to \S+ timed out|banner exchange",
        "ssh-unreachable",
    ),
)


def worth_another_try(stderr: str) -> bool:
    """True where sshd hung up before it knew us (too many start at once)."""
    return bool(_RETRY.search(stderr)) and "Permission denied" not in stderr


def destination(node: Node) -> str:
    """user@host as ssh is given it."""
    return f"{node.user}@{node.host}" if node.user else node.host


def explain(node: Node, stderr: str, code: int | None, have_key: bool) -> Finding:
    """The finding for an ssh client that ended before the node answered."""
    lines = [line.strip() for line in stderr.strip().splitlines() if line.strip()]
    said = lines[-1][:300] if lines else ""
    for pattern, cause in _RULES:
        match = re.search(pattern, stderr)
        if match:
            told = next((line for line in lines if re.search(pattern, line)), said)[:300]
            told = re.sub(r"^\S+@\S+: ", "", told)  # user@address, as the configuration has it: the node is named
            return _finding(node, cause, told, tuple(lines[-3:]), have_key)
    if code == 127 or "not found" in said or "No such file" in said:
        message = f"{node.name}: the login shell could not start /bin/sh: {said}"
        return Finding("remote-path-missing", "fail", message, "check the account's login shell on the node",
                       Where(node=node.name), tuple(lines[-3:]))  # fmt: skip
    message = f"{node.name}: ssh ended with code {code} before the node answered" + (f": {said}" if said else "")
    remedy = f"try it by hand: ssh -T -o BatchMode=yes {shlex.quote(destination(node))} true"
    return Finding("ssh-unreachable", "fail", message, remedy, Where(node=node.name), tuple(lines[-3:]))


def silent(node: Node, seconds: float) -> Finding:
    """The finding for a node that let the connection hang."""
    return Finding(
        "ssh-unreachable",
        "fail",
        f"{node.name} ({node.host}) did not answer within {seconds:g} s: the host is down, or a firewall drops "
        f"ssh's port {node.port or 22}",
        f"ping {node.host}; take the host out of the list, or give it longer with --connect-timeout",
        Where(node=node.name, port=node.port or 22),
    )


def _finding(node: Node, cause: str, said: str, evidence: tuple[str, ...], have_key: bool) -> Finding:
    to = shlex.quote(destination(node))
    port = f"-p {node.port} " if node.port else ""
    remedies = {
        "ssh-auth": ("" if have_key else "ssh-keygen -t ed25519\n") + f"ssh-copy-id {port}{to}",
        "ssh-hostkey": f"check the key with the node's owner, then: ssh {port}{to} true"
        + (f"   (a changed key: ssh-keygen -R {shlex.quote(node.host)})" if "CHANGED" in said else ""),
        "name-resolution": f"write {node.name}'s address into the host list, or add it to /etc/hosts here",
        "ssh-unreachable": f"is the host up, and sshd on port {node.port or 22}? try: ssh {port}{to} true",
    }
    return Finding(cause, "fail", f"{node.name}: {said}", remedies[cause], Where(node=node.name), evidence)
