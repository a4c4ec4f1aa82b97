"""Compares Lastmile with itself: two commits, or `Pipeline.loader` and the feed of a run.

`cells` has the tables and the work, `child` the process that measures with the code of one
checkout, and `__main__` the comparison.
"""
