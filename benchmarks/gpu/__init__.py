"""The built-in model on one GPU, fed by Lastmile, by a DataLoader, and by batches that are there.

    command ─▶ table          sample rows, written by all cores
            ─▶ schedule       which cell is measured when, so that all end before the deadline
            ─▶ host           processes that feed a model: one with threads, one that forks workers
                 ─▶ sources   the ways to bring batches to the device
                 ─▶ trace     when the GPU computed, and when it had nothing to do
            ─▶ report         page and picture

`pack` makes one archive of it for a machine without network; `on_device` runs the archive there.
"""
