"""A rank by itself: `old` asks a store without `check`, `broken` has a watchdog whose store lacks
every method, `unsupported` gives each of its words as an error of Gloo."""

import os
import sys
import time
from types import SimpleNamespace

from allranks.fabric.ranks.job import SuiteJob, is_set
from allranks.fabric.ranks.lab import Lab
from allranks.fabric.ranks.watchdog import Watchdog

job = SuiteJob(os.environ, 60.0)
if sys.argv[1] == "old":
    old = SimpleNamespace(compare_set=job.store.compare_set)
    before = is_set(old, "key"), is_set(old, "key")
    job.store.set("key", "1")
    print(*before, is_set(old, "key"), job.store.get("key"), job.store.delete_key("key") + 0)
elif sys.argv[1] == "unsupported":
    lab = SimpleNamespace(backend="gloo", test="all_gather")
    for words in sys.argv[2:]:
        try:
            with Lab.where_supported(lab, "all_gather"):
                raise RuntimeError(words)
        except Exception as error:
            print(type(error).__name__, error)
else:
    watchdog = Watchdog(job)
    watchdog.store = SimpleNamespace()
    watchdog.launch(print)
    watchdog.begin(0, "barrier", 60.0)
    time.sleep(60)
