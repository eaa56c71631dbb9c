"""Exit codes, the same for every verb."""

DONE = 0
PROGRAM_FAILED = 1
USAGE = 2
CHECK_FAILED = 3
NODE_FAILED = 4
HANG = 5
CTRL_C = 130
TERMINATED = 143
