"""One rank of the suite `pairs`, as `python -m allranks.fabric` runs it. START seconds may come from outside."""

import os
import sys

from allranks.fabric.ranks import pairs_suite as pairs
from allranks.fabric.ranks.job import SuiteJob
from allranks.fabric.ranks.options import parse

pairs.START = float(os.environ.get("TEST_START", pairs.START))
options = parse(["--suite", "pairs", *sys.argv[1:]], int(os.environ["RANK"]))
job = SuiteJob(os.environ, options.timeout)
code = pairs.run(job, options)
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
