"""`lastmile profile`: measure a sample in this process, without Ray, and advise.

`sample` takes row groups and measures the work on them, `roofline` runs the user's entrypoint on
batches that are already there (`replay`), `need` and `advice` conclude, `session` does all of it.
What it found is a `Profile` (`document`), shown by `terminal` and `page`.
"""
