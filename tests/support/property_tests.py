"""Sets the examples of property tests: few in `make test`, ten times as many every night."""

import os
import sys


def _read_factor() -> int:
    """Return LASTMILE_EXAMPLES; end the process if it is not a number from 1 to 1000."""
    text = os.environ.get("LASTMILE_EXAMPLES", "1")
    if not text.isdecimal() or not 1 <= int(text[:5]) <= 1000:
        sys.exit(f"LASTMILE_EXAMPLES: must be 1 to 1000, but is {text!r}")
    return int(text)


FACTOR = _read_factor()


def examples(count: int) -> int:
    """Return `count`, the examples of a test in `make test`, times LASTMILE_EXAMPLES."""
    return count * FACTOR
