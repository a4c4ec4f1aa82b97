"""Training: pieces become batches, batches meet the user's loop, and what was learnt is saved.

Before it runs `feed`; after it `run` writes the summary. `ranking` is the built-in model.
"""
