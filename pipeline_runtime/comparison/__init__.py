"""The comparison of runs: what differs between them, and whether the difference is more than noise.

`gathering` reads the runs, `comparing` builds the `Comparison` by `rows`, `bootstrap` and
`intervals`; `terminal` and `page` show it. `runs.locate` runs before, the command line after.
"""
