"""Measures an epoch: the processes that run it, and the checksums of its batches."""
