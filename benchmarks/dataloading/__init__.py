"""Compare loaders that bring the same rows to the same model, with proof of equal rows.

Reading order: `workloads` (the three levels of work) → `peers` (who takes part) → `loaders`, one
file each, `lastmile_loader` first, and the work that they share in `work` → `measuring`:
`checksums` and `consumers` (what is done with a batch, and the proof), `hosts` and `epochs` (one
measured epoch), `rounds` → `options`, `tables`, `settings`, `tuning`, `schedule` (which epochs, in
which order) → `reporting`: `ratios`, `comparisons`, `bars`, `results`, then `report` and `figure`.
"""
