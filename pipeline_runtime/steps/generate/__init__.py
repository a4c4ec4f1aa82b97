"""The step `generate`: fields, prompts, counts, and the transform."""
