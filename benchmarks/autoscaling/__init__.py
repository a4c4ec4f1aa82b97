"""Simulates Lastmile's autoscaling policy and those that a user might choose, in every scenario.

Reading order: `scenarios` → `policies` (ours, the oracle, constants) → `peers` → `simulations` →
`judging` (figures of each cell) → `__main__` (the results, and the command line).
"""
