"""A kind of source that is nothing like Parquet: rows that are computed, in units with buckets.

It shows what a new kind of source needs, and that nothing else in Lastmile knows which kinds exist:
a model, and a module that opens a `Source`.
"""
