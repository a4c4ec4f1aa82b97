"""The step `filter`."""
