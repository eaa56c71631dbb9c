"""Is the data really split? The audit of what each rank reads, and the plan of steps an epoch.

probe ships into the ranks and notes samples; rows and judge (pure) compare the ranks; virtual plays all ranks on
this machine; steps (pure) counts steps and predicts times. `audit` is for programs.
"""

from .auditing import Audit, audit

__all__ = ["Audit", "audit"]
