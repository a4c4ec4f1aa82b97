"""The step `measure`."""
