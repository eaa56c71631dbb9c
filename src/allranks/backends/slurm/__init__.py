"""Slurm through its own commands: jobs are submitted, looked at and cancelled, guards start in one step (IO)."""
