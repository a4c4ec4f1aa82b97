"""The step `select`."""
