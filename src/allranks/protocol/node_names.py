"""What a rank, its agent and the controller call the same things: variables of a rank, files of a node directory (pure,
Python 3.8).

Each name stands here and nowhere else, but for files that run where allranks is not installed: the runner, the probe
of loaders and `allranks.program` have the variables as text. tests/protocol/test_node_names.py reads them there.
"""

from __future__ import annotations

from typing import Union

RUN = "ALLRANKS_RUN"
RUN_TAG = "ALLRANKS_MARK"
DIALS = "dial_"  # begins the second half of the run tag of what dials: no agent ends it with its ranks
ROLE = "ALLRANKS_ROLE"
ATTEMPT = "ALLRANKS_ATTEMPT"
LAST_VERDICT = "ALLRANKS_LAST_VERDICT"
FORMER_WORLD_SIZE = "ALLRANKS_FORMER_WORLD_SIZE"
OUTPUT_DIR = "ALLRANKS_OUTPUT_DIR"
REPORT_SOCKET = "ALLRANKS_REPORT_SOCKET"
STACKS_FILE = "ALLRANKS_STACKS_FILE"
ASK_SOCKET = "ALLRANKS_ASK_SOCKET"
SAVE_FILE = "ALLRANKS_SAVE_FILE"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
NCCL_FILE = "NCCL_DEBUG_FILE"
PG_TIMEOUT = "ALLRANKS_PG_TIMEOUT"
PG_TIMEOUT_FORCED = "ALLRANKS_PG_TIMEOUT_FORCED"
AUDIT_FILE = "ALLRANKS_AUDIT_FILE"
AUDIT_BATCHES = "ALLRANKS_AUDIT_BATCHES"
TEMPLATE = "ALLRANKS_TEMPLATE"
BIND = "ALLRANKS_BIND"
CPUS = "ALLRANKS_CPUS"
# for runner_launched.py, which starts under a launcher of others
PLANNED = "ALLRANKS_PLANNED"
FIRST_RANK = "ALLRANKS_FIRST_RANK"
RANK_FILES = "ALLRANKS_RANK_FILES"
# Where torch's watchdog writes the recorder before it aborts; torch adds the rank. Its default is one directory of the
# user for all runs.
DUMPS = "TORCH_FR_DUMP_TEMP_FILE"
OLD_DUMPS = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"

# What each rank, or each attempt, has of its own: a module that reads one when it is imported can't be imported
# beforehand. The interfaces are known when the master has been reached, the number of the node when a spare takes its
# place.
OWN_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "ROLE_RANK",
    "GROUP_RANK",
    "NODE_RANK",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    ERROR_FILE,
    ATTEMPT,
    LAST_VERDICT,
    FORMER_WORLD_SIZE,
    STACKS_FILE,
    ASK_SOCKET,
    SAVE_FILE,
    CPUS,
    NCCL_FILE,
    DUMPS,
    OLD_DUMPS,
)

# Directories of a node directory.
SPOOL = "spool"  # what ranks have printed and the controller does not have yet
OUTPUTS = "outputs"  # what ranks write, unless the run says where
TREE = "tree"  # a synced tree

ANY = "{rank}"  # where a number stands once the rank knows it
RankOrAny = Union[int, str]


class NodeFiles:
    """The paths in a node directory. `rank` is a number, or ANY."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.reports = directory + "/report.sock"  # where the agent takes what the runners report
        self.orders = directory + "/agent.sock"  # where the agent takes its controller
        self.log = directory + "/node.log"  # of agent and supervisor
        self.spool = "%s/%s" % (directory, SPOOL)
        self.outputs = "%s/%s" % (directory, OUTPUTS)
        self.tree = "%s/%s" % (directory, TREE)
        self.ras = directory + "/ras.txt"  # what NCCL's RAS says
        self.ending = directory + "/ending"  # why the ranks are ended, once they are
        self.links = directory + "/links"  # symbolic links outside of the directory that lead into it, one a line
        self.ray = directory + "/ray"  # Ray's own directory

    def ray_log(self, attempt: int) -> str:
        """Name the ends of Ray's logs."""
        return "%s/ray_a%d.log" % (self.directory, attempt)

    def nccl_log(self, rank: RankOrAny, attempt: int) -> str:
        """Name NCCL's own log of a rank."""
        return "%s/nccl_a%d_rank_%s.log" % (self.directory, attempt, _digits(rank))

    def audit(self, rank: RankOrAny, attempt: int) -> str:
        """Name what a rank's loaders give; the probe knows ANY for its own."""
        return "%s/audit_a%d_rank_%s.jsonl" % (self.directory, attempt, _digits(rank))

    def error(self, rank: RankOrAny, attempt: int) -> str:
        """Name the exception that a rank dies of, by its runner."""
        return "%s/error_a%d_rank_%s.json" % (self.directory, attempt, _digits(rank))

    def stacks(self, rank: RankOrAny) -> str:
        """Name the stacks of a rank, by its runner and the agent."""
        return "%s/stacks_rank_%s.txt" % (self.directory, _digits(rank))

    def asked(self, rank: RankOrAny) -> str:
        """Name the socket at which a rank's runner says which collective it is at."""
        return "%s/ask_%s" % (self.directory, _digits(rank))

    def save(self, rank: RankOrAny, attempt: int) -> str:
        """Name what a rank and its agent share for should_save."""
        return "%s/save_a%d_rank_%s" % (self.directory, attempt, _digits(rank))

    def flight(self, rank: RankOrAny) -> str:
        """Name the flight-recorder dumps of a rank, one a line."""
        return "%s/flight_rank_%s.jsonl" % (self.directory, _digits(rank))

    def plain_trace(self, rank: RankOrAny) -> str:
        """Name a rank's trace as its runner writes it (runner_profile.py)."""
        return self.asked(rank) + ".trace"

    def trace(self, rank: RankOrAny, number: int) -> str:
        """Name the same as it travels, by the number of the profile."""
        return "%s/profile_%d_rank_%s.json.gz" % (self.directory, number, _digits(rank))

    def torch_dump(self, rank: RankOrAny, attempt: int) -> str:
        """Name the flight recorder as torch's watchdog writes it; torch adds the rank to what this is without one."""
        return "%s/torch_a%d_rank_%s" % (self.directory, attempt, rank)


def _digits(rank: RankOrAny) -> str:
    return rank if isinstance(rank, str) else "%03d" % rank
