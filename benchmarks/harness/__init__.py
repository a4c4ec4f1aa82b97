"""The harness of all benchmarks: a benchmark is a thin program on it.

A benchmark measures *cells* (a table, a level of work, a size). In each cell it compares *arms*
(ways to do the same) with one of them, the base. All arms run in every round, in a random order
that is fixed for each round. They must deliver equal output, by checksum. A ratio is that of two
arms in one round; its bounds come from the rounds.

`rounds` measures a cell, `report` has the metrics and targets and writes the page, `figure` draws
the picture, and `program` is the command line. `children` runs a process that answers requests,
such as one with the code of another commit; `serving` is the other side of it.
"""
