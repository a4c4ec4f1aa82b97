"""Measures scoring: a model's outputs added to a table with many columns, compared with peers.

Reading order: `tables` (the rows, and the models) → `programs` (each way to score them) →
`language` (ways to generate texts) → `child` (the process that runs one) → `__main__` (the cells
and the targets).
"""
