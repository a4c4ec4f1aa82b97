"""The step `sample`."""
