"""The step `padSequence`."""
