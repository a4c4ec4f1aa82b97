"""The step `predict`."""
