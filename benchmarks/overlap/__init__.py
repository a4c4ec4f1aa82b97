"""Measures if loading overlaps with training.

`sessions` has one session: the readers, the training, and the core of each; `neighbour` the process
beside a model; `__main__` the comparison.
"""
