"""How many examples a property test tries: few in `make test`, ten times as many every night."""

import os

FACTOR = int(os.environ.get("LASTMILE_EXAMPLES", "1"))


def examples(count: int) -> int:
    """Return how many examples a test tries that tries `count` in `make test`."""
    return count * FACTOR
