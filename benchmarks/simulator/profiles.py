"""The profiles to run; the pace, and with it the required workers, changes once in a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dataset_operator.autoscaling.interface import Direction, RateLimit, Rules
from dataset_operator.simulation.setting import Phase

BATCH_ROWS: Final = 500
# A row group is a unit and a chunk; without a shuffle no two are read together.
UNIT_ROWS: Final = 1000
# Fewer workers within minutes, so that a run takes minutes; a spec may have the same rules.
DOWN: Final = Direction(
    stabilization_seconds=45.0,
    limits=(RateLimit(type="Percent", value=100, period_seconds=15.0),),
)
# The rules of the policy, the same for real and simulated runs.
RULES: Final = Rules(min_workers=1, max_workers=6, down=DOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A run.

    Attributes:
        phases: costs of the sleeps alone.
        rows: rows to train.
        is_predicted: True if the simulator is not fitted to it.
    """

    name: str
    first_workers: int
    rows: int
    phases: tuple[Phase, ...]
    is_predicted: bool = False

    def phase_at(self, rows: float) -> int:
        """Return the index of the phase after this many rows."""
        return max(i for i, phase in enumerate(self.phases) if phase.from_row <= rows)

    def required(self) -> list[float]:
        """Return D ÷ μ of each phase, by the sleeps."""
        return [p.row_seconds * BATCH_ROWS / p.step_seconds for p in self.phases]


# The required workers are far from whole numbers, with headroom too, where noise would decide.
PROFILES: Final = (
    Profile(
        name="starved",
        first_workers=1,
        rows=400_000,
        phases=(Phase(step_seconds=0.25, row_seconds=1 / 600),),
    ),
    Profile(
        name="slower model",
        first_workers=2,
        rows=450_000,
        phases=(
            Phase(step_seconds=0.25, row_seconds=1 / 600),
            Phase(from_row=250_000, step_seconds=0.5, row_seconds=1 / 600),
        ),
    ),
    Profile(
        name="expensive rows",
        first_workers=1,
        rows=400_000,
        phases=(
            Phase(step_seconds=0.4, row_seconds=1 / 800),
            Phase(from_row=150_000, step_seconds=0.4, row_seconds=1 / 370),
        ),
        is_predicted=True,
    ),
)
