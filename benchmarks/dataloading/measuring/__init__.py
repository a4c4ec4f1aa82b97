"""Measures an epoch: the processes that run it, what is done with its batches, and the rounds."""
