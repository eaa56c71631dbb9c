"""Seeded rounds of faults at random moments, and what must hold in each (`make chaos`)."""
