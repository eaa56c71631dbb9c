"""Which node, link or rail is slow or dead: the schedule of the pairs, their figures, and who is to blame.
May hold: rounds and stages, records, statistics, words, heatmaps. May not: IO, clocks, chance."""
