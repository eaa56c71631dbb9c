"""One rank of the suite `pairs`, as `python -m allranks.collectives` runs it. START seconds may come from outside."""

import os
import sys

from allranks.collectives import pairs
from allranks.collectives.job import Job
from allranks.collectives.options import parse

pairs.START = float(os.environ.get("TEST_START", pairs.START))
options = parse(["--suite", "pairs", *sys.argv[1:]], int(os.environ["RANK"]))
job = Job(os.environ, options.timeout)
code = pairs.run(job, options)
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
