"""Materializations: tables of transformed rows, which later runs read instead of computing them.

1. `recipe` describes how the rows are computed. Its hash names the cache table (`imports` describes
   the user's code in it).
2. `coverage` describes from which rows: a fingerprint of each partition of the source, and of the
   side tables. It compares the present state with the one that a cache table recorded.
3. `tables` finds, describes and deletes cache tables.

Before this package runs `steps`, which binds the steps; after it `plan`, which reads the cache
table in place of the source.
"""
