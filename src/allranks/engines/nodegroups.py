"""Node groups of ClusterShell in `--hosts`: `@gpu` to the names that the user's own configuration gives it.

ClusterShell is an extra (`pip install 'allranks[clustershell]'`) and is imported here only, for an explicit `@group`
of `--hosts`: its group sources run commands of its configuration, so no text of a file, a scheduler or a peer may
reach it. The configuration is `groups.conf` of $CLUSTERSHELL_CFGDIR, else of ~/.config/clustershell; the samples that
the package installs are not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from allranks.cluster.hostlist import MAX_HOSTS, exclude, split_exclusions, split_list
from allranks.errors import UsageError

_GROUP = re.compile(r"@([A-Za-z0-9_][A-Za-z0-9_.-]*:)?[A-Za-z0-9_][A-Za-z0-9_.-]*")


def has_groups(hosts: str) -> bool:
    """Whether an item of the list names a group: it starts with `@` (`user@host` does not)."""
    return any(item.lstrip(" \t").startswith("@") for item in hosts.split(","))


def expand_groups(hosts: str, environ: Mapping[str, str]) -> str:
    """Put the names of its hosts in the place of each group of a `--hosts` list, in ClusterShell's order.

    Raises UsageError where ClusterShell or its configuration is missing, or a group is unknown or empty."""
    items: list[str] = []
    for item in split_list(hosts):
        if item.startswith("@"):
            items += _hosts_of(item, environ)
        else:
            items.append(item)
    return ",".join(items)


def _hosts_of(item: str, environ: Mapping[str, str]) -> list[str]:
    group, excluded = split_exclusions(item)
    if not _GROUP.fullmatch(group):
        raise UsageError(f"--hosts: {group!r} is not a node group. Write @group or @source:group")
    names = _resolve(group, _configuration(environ))
    if not names:
        raise UsageError(f"--hosts: the node group {group} has no host\nhint: cluset -e {group}")
    if len(names) > MAX_HOSTS:
        raise UsageError(f"--hosts: the node group {group} has {len(names)} hosts. {MAX_HOSTS} are the most")
    return exclude(names, excluded, item)


def _configuration(environ: Mapping[str, str]) -> Path:
    config_home = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    directory = environ.get("CLUSTERSHELL_CFGDIR") or os.path.join(config_home, "clustershell")
    path = Path(directory) / "groups.conf"
    if not path.is_file():
        raise UsageError(
            f"--hosts: a node group needs ClusterShell's configuration, and {path} does not exist\n"
            "hint: export CLUSTERSHELL_CFGDIR=/etc/clustershell, if your site keeps its groups there"
        )
    return path


def _resolve(group: str, configuration: Path) -> list[str]:
    try:  # an extra that few have; its import reads files
        from ClusterShell.NodeSet import NodeSet, NodeSetException
        from ClusterShell.NodeUtils import GroupResolverConfig, GroupResolverError
    except ImportError:
        raise UsageError(
            f"--hosts: {group} is a node group, and ClusterShell is not installed here\n"
            "hint: pip install ClusterShell, or write the hosts: node[01-04]"
        ) from None
    try:
        return list(NodeSet(group, resolver=GroupResolverConfig([str(configuration)])))
    except (NodeSetException, GroupResolverError) as error:
        raise UsageError(f"ClusterShell does not know {group}: {error}\nhint: cluset -L") from None
