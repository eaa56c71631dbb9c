"""Who keeps the others waiting: stacks and process states of all ranks, twice, to one sentence (pure).
May hold: reading of stacks, what a rank is doing, attribution. May not: asking nodes, clocks."""
