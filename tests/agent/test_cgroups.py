"""A group finds a process that lineage and mark have lost."""

import os
import subprocess
import sys

import pytest
from tests.hosts.waiting import BOUND

from allranks.agent import cgroups

pytestmark = pytest.mark.processes

PROGRAM = """
import os, subprocess, sys
sys.path.insert(0, %r)
from allranks.agent import cgroups, processes
path = cgroups.join_own("allranks-test-%%d" %% os.getpid())
if path is None:
    print("None"); sys.exit()
child = subprocess.Popen(["setsid", "sleep", "1000"], env={"PATH": os.environ["PATH"]})
lost = processes.read_process(child.pid)
print(child.pid in cgroups.members(path), cgroups.members(None))
left = processes.end_all(
    lambda: [p for p in processes.everything("no-mark", cgroups.members(path)) if p.pid != os.getppid()],
    processes.reap_children, 10)
print(left, [p for p in cgroups.members(path) if p != os.getpid()])
"""


def test_members_are_found_and_ended():
    done = subprocess.run([sys.executable, "-c", PROGRAM % os.path.abspath("src")],
                          capture_output=True, text=True, timeout=BOUND)  # fmt: skip
    if done.stdout.strip() == "None":
        pytest.skip("no control group can be made here")
    assert done.stdout.split("\n")[:2] == ["True []", "[] []"], done.stderr
    for parent in cgroups.parent_groups():
        for name in os.listdir(parent) if os.path.isdir(parent) else []:
            if name.startswith("allranks-test-"):
                cgroups.remove(os.path.join(parent, name))
