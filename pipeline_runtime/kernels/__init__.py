"""Compiled kernels for what steps spend their time on, beside the plain numpy that they equal.

    select(wanted, num_items)   the kernels, or None: take the plain path
    warm()                      have them ready before the first row, or in an image's build
    stop_loading()              at the end of a run, which no longer needs them
    describe(wanted)            for `explain`

A step asks `select` at every table and does the same by numpy where it gets None: both give the
same bits, so it does not matter when the kernels become ready, nor on which worker. They know
numpy arrays alone; nulls, slices and offsets are the caller's. They let go of Python's lock.
"""

from __future__ import annotations

from pipeline_runtime.kernels.loading import (
    Kernels,
    describe,
    loading_seconds,
    select,
    stop_loading,
    warm,
)

__all__ = ["Kernels", "describe", "loading_seconds", "select", "stop_loading", "warm"]
