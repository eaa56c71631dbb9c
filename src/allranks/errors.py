"""All errors that are raised on purpose. Only `cli/` catches `AllranksError`.

Any other exception that leaves a command is a defect of allranks: exit code 70, cause `internal-error`.
A message says what was set, what was found, and what to set. A failed check is a Finding, not an error.
"""

from __future__ import annotations

from collections.abc import Sequence

REPORT_TO = "to the maintainers of allranks"  # where a defect of allranks goes


class AllranksError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command returns."""

    exit_code = 4


class UsageError(AllranksError):
    """What the user asked cannot be done as asked."""

    exit_code = 2


class HostfileError(UsageError):
    """A host list or hostfile is wrong; the message starts with `file:line:`."""


class ConfigError(UsageError):
    """A setting is wrong: an option, a variable, a key of allranks.toml. The message names it."""


class RunNotFound(UsageError):
    """The run directory that was named, or any at all, does not exist."""


class SeveralRuns(RunNotFound):
    """Several runs match what was named; `paths` are their directories."""

    def __init__(self, message: str, paths: Sequence[str]) -> None:
        super().__init__(message)
        self.paths = tuple(paths)


class NodeError(AllranksError):
    """A node, a link or a service failed."""


class TransportError(NodeError):
    """A node could not be reached."""


class RunIsElsewhere(AllranksError):
    """The run that is meant is on `host`; `directory` is known of one that was started from here.

    `wanted`: how the command line names it. `ssh_options`: with which it was started. `hosts`: its host list, where
    ssh of this machine is lent to its controllers.
    """

    def __init__(
        self,
        host: str,
        wanted: str | None,
        directory: str | None = None,
        ssh_options: Sequence[str] = (),
        hosts: str = "",
    ) -> None:
        super().__init__(
            f"the run is on {host}: {directory or wanted or 'the newest'}\nhint: allranks attach --on {host}"
        )
        self.host = host
        self.wanted = wanted
        self.directory = directory
        self.hosts = hosts
        self.ssh_options = tuple(ssh_options)


class Interrupted(AllranksError):
    """The user or the system ended the command; 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
