"""Trained models of runs: `loading` builds one from a checkpoint, `exporting` writes it to a file.

Before it runs `training`, which wrote the checkpoint; `runs` finds the run's folder.
"""
