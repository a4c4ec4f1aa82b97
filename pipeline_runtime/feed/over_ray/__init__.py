"""The feed over Ray: reader actors on the data workers, or Ray Data.

Of the feed, only these modules import ray.
"""
