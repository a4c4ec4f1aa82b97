"""The step `truncate`."""
