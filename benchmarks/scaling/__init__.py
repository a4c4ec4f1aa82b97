"""Measure whether n data-worker nodes bring a trainer n times the rows, and the cost.

Every node is a raylet of this machine with one of the product's readers, slowed by sleeping to a
twelfth of what the trainer takes in. Chunks go from a reader through the object stores of both
nodes to this process, which leases them, cuts batches and makes tensors, as a rank does.

Reading order: `units` (what is read) → `ray_cluster` (nodes that come and go) → `slow_readers`,
`readers` → `one_pass` (the trainer's side, measured) → `elastic` (nodes join and leave) →
`schedule` (what is measured, in which order) → `results` → `report` and `figure`; `command` is the
command line.
"""
