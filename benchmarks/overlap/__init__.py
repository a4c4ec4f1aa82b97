"""Measures if loading overlaps with training.

`sessions` has one session: the readers, the training, and the core of each; `levels` compares the
sessions of a level of work; `__main__` has the metrics and targets.
"""
