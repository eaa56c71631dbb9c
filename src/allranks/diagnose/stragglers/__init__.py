"""Slow ranks of a run that goes on: who comes late to collectives, since when, and why (pure)."""
