"""Measures how often `lastmile compare` errs on real trainings, and what it can detect.

`trainings` makes click logs and trains the built-in model on them, `comparisons` compares variants
as the product does, and `__main__` counts the verdicts.
"""
