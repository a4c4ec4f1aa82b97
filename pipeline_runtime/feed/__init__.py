"""The training feed: groups of row groups become pieces of ready rows, on whatever engine.

Before it runs `plan`, after it `training`, which cuts pieces into batches.
"""
