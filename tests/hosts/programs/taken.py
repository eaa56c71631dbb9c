"""Rank 0 opens torch's store on the master's port; in the first attempt only once somebody else has that port."""

import os
import time

if os.environ["ALLRANKS_ATTEMPT"] == "0":
    while not os.path.exists("taken"):
        time.sleep(0.02)
if os.environ["RANK"] == "0":
    from torch.distributed import TCPStore

    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False)
    print("STORE", store.port, "RESTARTS", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
