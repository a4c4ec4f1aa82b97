"""Measures if n data-worker nodes give a trainer n times the rows, and the cost of that.

Each node is a raylet of this machine with one of the product's readers, which is slowed by sleeping
to a twelfth of the trainer's rate. Chunks go from a reader through the object stores of both nodes
to this process, which leases them, cuts batches and makes tensors, as a rank does.

Reading order: `ray_cluster` (nodes that join and leave) → `readers` and `slow_readers` (the pool
and its tables) → `passes` (the trainer's side, measured) → `comparison` (all passes).
"""
