"""run --sky: a cluster of its own for the run, followed through `sky logs`, taken down at the end."""
