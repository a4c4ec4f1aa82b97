"""The step `rename`."""
