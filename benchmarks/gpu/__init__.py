"""Trains the built-in model on one GPU, fed by Lastmile, by a DataLoader, and by batches in its
memory.

    command ─▶ table          sample rows, written by all cores
            ─▶ host           processes that feed a model: one with threads, one that forks workers
                 ─▶ sources   the ways to bring batches to the device
                 ─▶ trace     the times in which the GPU computed, and in which it was idle

`pack` makes one archive of it for a machine without network; `on_device` runs the archive there.
"""
