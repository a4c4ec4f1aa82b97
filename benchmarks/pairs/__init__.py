"""Compares Lastmile with itself: two commits, or `Pipeline.loader` and the feed of a run.

`python -m benchmarks.pairs --base COMMIT` measures epochs of this checkout and of another in turn,
on the same tables, until the bounds of each ratio are narrow enough. Both must deliver the same
rows.

Reading order: `cells` (tables and work) → `child` (a process that measures with the code of one
checkout) → `arms` (checkouts and their processes) → `rounds` → `report` → `command` → `figure`.
"""
