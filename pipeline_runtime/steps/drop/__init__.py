"""The step `drop`."""
