"""Trains a model on a GPU, fed by `Pipeline.loader` and by a DataLoader.

Reading order: `__main__` (the comparison) → `training` (the process that trains) → `pack` and
`on_device`, which bring it to a machine without network.
"""
