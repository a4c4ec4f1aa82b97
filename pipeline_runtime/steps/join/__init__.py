"""The step `join`."""
