"""Diagnosis from logs of any launcher: lines → sightings of known texts → rules → Verdict (pure)."""
