"""Seeds of sampling steps, so that two steps of one pipeline draw independently.

Keeping 10 % by hash and then 50 % by the same hash would keep all of the 10 %. So the second step
of a pipeline that draws by the same seed over the same identity counts the first: `draw` 1 is
another stream of the same seed, and the first step's rows do not depend on how many follow.
"""

from __future__ import annotations

# Seeds of a manifest are below 2**31 (config.base.Seed): the number of the draw goes above them.
_SEED_BITS = 32


def draw_seed(seed: int, draw: int) -> int:
    """Return the seed of draw number `draw`, which is `seed` itself for the first draw."""
    return seed + (draw << _SEED_BITS)
