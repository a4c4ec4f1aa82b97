"""Metrics over rows in any number of parts: accumulators whose results do not depend on the parts.

    rows of a chunk ─▶ update ─▶ state ─▶ bytes ─▶ … ─▶ state ─▶ merge ─▶ finish ─▶ result

A state is made of integers, hashes and sorted values alone, and merging them is associative and
commutative. So the merged state is the same bit for bit, whatever the parts and their order; floats
are added only when a result is finished. `exact` turns floats into integers, `values` has the
values that a state is made of, `encoding` makes bytes of them, and `base` is what all accumulators
share. The accumulators are in the other modules, one kind of metric each; `grouping` keeps another
accumulator per group of rows.

The step `measure` makes the accumulators. Nothing here imports ray or torch.
"""
