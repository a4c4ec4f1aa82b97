"""Errors of this benchmark, which are those of the harness."""

from benchmarks.harness.errors import BenchmarkError, DisagreementError

__all__ = ["BenchmarkError", "DisagreementError"]
