"""Compares Lastmile with itself: two commits, or `Pipeline.loader` and the feed of a run."""
