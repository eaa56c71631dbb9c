"""Slurm through its own commands: jobs are submitted, looked at and cancelled, agents start in one step (IO)."""
