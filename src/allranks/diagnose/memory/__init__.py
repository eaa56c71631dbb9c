"""Out of memory: what the message says in figures, what the run was asked to do, and the levers in order (pure)."""
