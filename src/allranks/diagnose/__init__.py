"""Why a run failed: Incident (all evidence) → rules → Verdict (pure).
May hold: rules, causes, wording, what Slurm and Kubernetes say. May not: IO; names are imported from the modules."""
