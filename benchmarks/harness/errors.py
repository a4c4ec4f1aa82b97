"""Errors by which a benchmark refuses its own figures."""

from __future__ import annotations


class BenchmarkError(Exception):
    """The benchmark cannot continue, or must not. The message says why, and what to do."""


class DisagreementError(BenchmarkError):
    """Two arms delivered different output, so their speeds must not be compared."""
