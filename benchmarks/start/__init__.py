"""Measures the time of a run from Enter to its plan, its first step, and its report.

`python -m benchmarks.start --old COMMIT` runs one experiment by this checkout, by another commit in
a worktree, and by a DataLoader script with the same model on the same rows. They take turns.

Reading order: `training` (the model, as entrypoint and as script) → `running` (one process,
watched) → `command` (rounds and results) → `figure`.
"""
