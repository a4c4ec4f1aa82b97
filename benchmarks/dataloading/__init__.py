"""Compare loaders that bring the same rows to the same model, with proof of equal rows.

Reading order: `workloads` (the two levels of work) → `peers` (who takes part) → `loaders`, one file
each, `lastmile_loader` first, and the work that they share in `work` → `measuring`: `checksums`
(the proof), `epochs` (one measured epoch), `hosts` and `host` (the processes that run it) →
`tuning`, `schedule` (which epochs, in which order) → `__main__` (options and targets).
"""
