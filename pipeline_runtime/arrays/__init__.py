"""A batch before it is tensors: Arrow tables as numpy arrays, cut, joined and packed in one buffer.

Without torch, since readers do this work too and should neither wait for it nor hold it in memory;
`batches` makes tensors of arrays, where the trainer is.

`conversion` (Arrow to arrays, and what has no array) → `cuts` (by rows) → `packing` (for the wire
and for a GPU, lists that are mostly filling without it) → `batches`.
"""
