"""Errors by which the benchmark refuses its own figures."""

from __future__ import annotations


class BenchmarkError(Exception):
    """The benchmark cannot continue, or must not. The message says why, and what to do."""


class DisagreementError(BenchmarkError):
    """Two loaders delivered different rows or contents, so their speeds must not be compared."""
