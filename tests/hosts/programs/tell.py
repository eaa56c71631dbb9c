"""A rank that tells what it was given: argv, environment, working directory, as one line of JSON."""

import json
import os
import sys

print("TOLD " + json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}), flush=True)
