"""The step `embed`: fields and the transform."""
