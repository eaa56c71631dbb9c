"""A rank by itself: `old` asks a store without `check`, `broken` has a watchdog whose store lacks every method."""

import os
import sys
import time
from types import SimpleNamespace

from allranks.fabric.ranks.job import SuiteJob, is_set
from allranks.fabric.ranks.watchdog import Watchdog

job = SuiteJob(os.environ, 60.0)
if sys.argv[1] == "old":
    old = SimpleNamespace(compare_set=job.store.compare_set)
    before = is_set(old, "key"), is_set(old, "key")
    job.store.set("key", "1")
    print(*before, is_set(old, "key"), job.store.get("key"), job.store.delete_key("key") + 0)
else:
    watchdog = Watchdog(job)
    watchdog.store = SimpleNamespace()
    watchdog.launch(print)
    watchdog.begin(0, "barrier", 60.0)
    time.sleep(60)
