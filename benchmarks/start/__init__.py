"""Measures the time of a run from Enter to its plan, its first step, and its report.

`training` is the model, as an entrypoint and as a script; `__main__` the comparison.
"""
