"""The step `materialize`."""
