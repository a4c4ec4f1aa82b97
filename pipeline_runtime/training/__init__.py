"""Training: chunks become batches, batches meet the user's loop, and what was learnt is saved.

Before it runs `feed`; after it `run` writes the summary. `ranks` runs one rank, `checkpoints` saves
and loads its state, and `ranking` is the built-in model.
"""
