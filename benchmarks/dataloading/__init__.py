"""Compare loaders that bring the same rows to the same model, with proof of equal rows.

Reading order: `workloads` (the three levels of work) → `peers` (who takes part) → a file a loader,
`lastmile_loader` first, what they share in `row_groups`, `columns`, `arrow_work` and `pieces` →
`checksums`, `consumers` (what is done with a batch, and the proof) → `hosts`, `epochs` (one
measured epoch) → `options`, `tables`, `settings`, `tuning`, `rounds`, `schedule` (which epochs, in
which order) → `ratios`, `comparisons`, `bars`, `results` → `report` and `figure`.
"""
