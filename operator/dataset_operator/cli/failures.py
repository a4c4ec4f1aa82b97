"""Prints the errors of commands on a cluster, and ends them with exit code 1.

Bad manifests and options end with exit code 2; the rest of the program handles them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dataset_operator.errors import KubeConflict, KubeRefused, KubeUnavailable, OperatorError
from pipeline_runtime.config import clean

EXIT_FAILED = 1


def print_error(text: str) -> None:
    """Print an error, cleaned: it may contain text from a user's code or store."""
    text = clean(text)
    print(f"error:\n{text}" if "\n" in text else f"error: {text}", file=sys.stderr)


@contextmanager
def explaining(tell: Callable[[str], None] = print_error) -> Iterator[None]:
    """Report an OperatorError without a traceback, and exit."""
    try:
        yield
    except OperatorError as error:
        tell(explain(error))
        sys.exit(EXIT_FAILED)


def explain(error: OperatorError) -> str:
    """Return the error's message, with advice."""
    if isinstance(error, KubeUnavailable):
        return f"the API server does not answer: {error}; check the cluster and --context"
    if isinstance(error, KubeConflict):
        return f"it was changed meanwhile: {error}; look at it and try again"
    if isinstance(error, KubeRefused):
        # Kubernetes' messages for a missing right; a full quota is "forbidden" too, without "User".
        is_right = "is forbidden: User" in str(error) or str(error) == "Unauthorized"
        advice = "; ask for that right, or check --context" if is_right else ""
        return f"the API server refuses it: {error}{advice}"
    return str(error)
