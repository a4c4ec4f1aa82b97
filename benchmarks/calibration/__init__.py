"""Measures how often `lastmile compare` errs on real trainings, and what it can detect.

`trainings` makes click logs and trains the built-in model on them, `comparisons` compares variants
as the product does, `report` counts and draws, and `command` is `python -m benchmarks.calibration`.
"""
