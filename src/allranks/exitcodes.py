"""Exit codes, the same for every command (pure)."""

DONE = 0
PROGRAM_FAILED = 1
USAGE = 2
CHECK_FAILED = 3
NODE_FAILED = 4  # a node, a link or a service failed
HANG = 5
INTERNAL = 70  # EX_SOFTWARE of sysexits.h: allranks itself failed
CTRL_C = 130
TERMINATED = 143  # SIGTERM, or `allranks stop`

MEANINGS = {
    DONE: "done",
    PROGRAM_FAILED: "the training program failed",
    USAGE: "usage or configuration",
    CHECK_FAILED: "a check or test failed",
    NODE_FAILED: "a node, link or service failed",
    HANG: "a hang",
    INTERNAL: "allranks itself failed",
    CTRL_C: "Ctrl-C",
    TERMINATED: "SIGTERM or `allranks stop`",
}


def code_if(failed: bool, code: int) -> int:
    """Return `code` where something failed, else that all is done."""
    if failed:
        return code
    return DONE
