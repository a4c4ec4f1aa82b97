"""Ranks: one rank of a run from its beginning to its end, and the process around it."""
