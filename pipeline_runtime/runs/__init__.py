"""Runs that exist: locating, listing and deleting them. `run` makes them."""
