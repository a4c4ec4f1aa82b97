"""The profiles to run; the pace, and with it the required workers, changes once in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dataset_operator.autoscaling.interface import Direction, RateLimit, Rules
from dataset_operator.simulation.setting import Phase

BATCH_ROWS: Final = 500
# A row group is a unit and a chunk; without a shuffle no two are read together.
UNIT_ROWS: Final = 1000
MAX_WORKERS: Final = 6
# Fewer workers within minutes, so that a run takes minutes; a spec may have the same rules.
DOWN: Final = Direction(
    stabilization_seconds=45.0,
    limits=(RateLimit(type="Percent", value=100, period_seconds=15.0),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A run.

    Attributes:
        is_predicted: True if the simulator is not fitted to it.
        phases: costs of the sleeps alone.
        rows: rows to train.
    """

    name: str
    is_predicted: bool
    first_workers: int
    rows: int
    phases: tuple[Phase, ...]

    def phase_at(self, rows: float) -> int:
        """Return the index of the phase after this many rows."""
        return max(i for i, phase in enumerate(self.phases) if phase.from_row <= rows)

    def required(self) -> list[float]:
        """Return D ÷ μ of each phase, by the sleeps."""
        return [p.row_seconds * BATCH_ROWS / p.step_seconds for p in self.phases]

    def shortened(self, share: float) -> Profile:
        """Return a profile with the same paces and a share of the rows."""
        phases = tuple(
            Phase(
                from_row=phase.from_row * share,
                step_seconds=phase.step_seconds,
                row_seconds=phase.row_seconds,
            )
            for phase in self.phases
        )
        return Profile(
            name=self.name,
            is_predicted=self.is_predicted,
            first_workers=self.first_workers,
            rows=int(self.rows * share),
            phases=phases,
        )


# The required workers are far from whole numbers, with headroom too, where noise would decide.
PROFILES: Final[Sequence[Profile]] = (
    Profile(
        name="starved",
        is_predicted=False,
        first_workers=1,
        rows=400_000,
        phases=(Phase(step_seconds=0.25, row_seconds=1 / 600),),
    ),
    Profile(
        name="slower model",
        is_predicted=False,
        first_workers=2,
        rows=450_000,
        phases=(
            Phase(step_seconds=0.25, row_seconds=1 / 600),
            Phase(from_row=250_000, step_seconds=0.5, row_seconds=1 / 600),
        ),
    ),
    Profile(
        name="expensive rows",
        is_predicted=True,
        first_workers=1,
        rows=400_000,
        phases=(
            Phase(step_seconds=0.4, row_seconds=1 / 800),
            Phase(from_row=150_000, step_seconds=0.4, row_seconds=1 / 370),
        ),
    ),
)


def build_rules() -> Rules:
    """Return the rules of the policy, the same for real and simulated runs."""
    return Rules(min_workers=1, max_workers=MAX_WORKERS, down=DOWN)
