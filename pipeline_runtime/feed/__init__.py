"""The training feed: groups of row groups become pieces of ready rows, on whatever engine.

Before it runs `plan`, after it `training`, which cuts pieces into batches. `making` makes pieces,
`transport` sends them, `reader_feed` leases groups to readers: those of one machine (`local`), or
actors (`over_ray`).
"""
