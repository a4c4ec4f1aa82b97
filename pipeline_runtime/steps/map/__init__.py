"""The step `map`."""
