"""Batches before they are tensors: numpy arrays of Arrow tables, cut, joined, packed in a buffer.

It does not import torch: readers do this work too, and should neither wait for torch nor hold it in
memory. `batches` makes tensors of arrays in the trainer's process.

`conversion` (Arrow to arrays, and values without an array) → `cuts` (by rows) → `packing` (for the
wire and for a GPU, without the filling of lists) → `batches`.
"""
