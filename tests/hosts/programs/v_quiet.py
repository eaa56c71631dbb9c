"""A rank that is up, sleeps, and handles no signal."""

import os
import time
from pathlib import Path

Path(f"up-{os.environ['RANK']}").touch()
while True:
    time.sleep(1)
