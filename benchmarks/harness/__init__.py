"""The harness of all benchmarks: a benchmark is a thin program on it.

A benchmark measures *cells* (a table, a level of work, a size). In each cell it compares *arms*
(ways to do the same) with one of them, the base. All arms run in every round, in a random order
that a seed fixes. They must deliver equal output, by checksum. A ratio is that of two arms in one
round; its bounds come from the rounds.

    errors      BenchmarkError, DisagreementError
    machine     circumstances of a measurement: machine, commit, versions, CPU seconds and memory
    statistics  medians, and ratios with bounds
    cells       Cell: values of each arm, metric and round
    rounds      measure(): the rounds of one cell
    children    a process that answers requests, such as one that runs the code of another commit
    serving     the other side of that process
    report      Benchmark: metrics and targets; its JSON file and its page
    merging     the cells of a run among those of earlier runs
    figure      the picture of any benchmark: ratios with bounds, or lines where a size grows
    program     run(): the command line of a benchmark
"""
