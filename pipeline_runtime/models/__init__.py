"""Trained models: `loading` builds one from a checkpoint, `exporting` writes it to a file, and
`scoring` calls it on the rows of a pipeline.

Before it runs `training`, which wrote the checkpoint; `runs` finds the run's folder.
"""
