"""The step `weight`."""
