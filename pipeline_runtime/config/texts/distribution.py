"""The name of the Python distribution, and how to install an extra of it.

Both packages use it. The name differs from that of the command: `lastmile` on PyPI belongs to
another company. This one is on no index, so nobody is told to install it by its bare name.
"""

from __future__ import annotations

DISTRIBUTION = "lastmile-experiments"


def explain_missing(module: str | None, extra: str = "runtime") -> str:
    """Return a message about a missing module of an extra, with the command that installs it."""
    return (
        f"{module} is missing, which comes with the extra {extra!r}. Install it from a checkout of "
        f"Lastmile: pip install '/path/to/checkout[{extra}]', or from its wheel: "
        f"pip install '/path/to/{DISTRIBUTION.replace('-', '_')}-VERSION-py3-none-any.whl[{extra}]'"
    )
