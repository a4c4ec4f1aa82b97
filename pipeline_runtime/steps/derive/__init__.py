"""The step `derive`."""
