# ruff: noqa
"""Starts itself again, as some launchers inside libraries do."""
import os
import subprocess
import sys

print(sys.argv, os.environ.get("AGAIN"), flush=True)
if "AGAIN" not in os.environ:
    commands = [[sys.executable, *sys.argv], getattr(sys, "orig_argv", [sys.executable, *sys.argv])]
    for command in commands:
        print(subprocess.run(command, env=dict(os.environ, AGAIN="1")).returncode, flush=True)
else:
    raise ValueError("in a child process")
