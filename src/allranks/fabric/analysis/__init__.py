"""What measurements mean: pure functions over records. Schedules, statistics, words; no IO, clocks, chance."""
