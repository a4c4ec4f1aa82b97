"""Compare loaders that bring the same rows to the same model, with proof of equal rows.

Reading order: `workloads` (the two levels of work) → `peers` (who takes part) → `loaders`, one file
each, `lastmile_loader` first, and the work of the peers in `row_groups` → `measuring`: `checksums`
(the proof), `epochs` (one measured epoch) → `child` (the process that runs it) → `__main__` (which
epochs, in which order, and the targets).
"""
