"""The step `clip`."""
