"""The profiles to run: a pace, and with it the need, changes once in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dataset_operator.autoscaling.interface import Direction, RateLimit, Rules
from dataset_operator.simulation.setting import Phase

BATCH_ROWS: Final = 500
# A row group is a unit, and a chunk: with nothing shuffled no two are read as one.
UNIT_ROWS: Final = 1000
MAX_WORKERS: Final = 6
# Fewer are wanted within minutes, so that a run is minutes long; a spec may say the same.
DOWN: Final = Direction(
    stabilization_seconds=45.0,
    limits=(RateLimit(type="Percent", value=100, period_seconds=15.0),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A run.

    Attributes:
        is_foretold: what it gives is not looked at to fit the simulator.
        phases: what sleeps alone cost.
        rows: that are trained; then it is over.
    """

    name: str
    is_foretold: bool
    first_workers: int
    rows: int
    phases: tuple[Phase, ...]

    def phase_at(self, rows: float) -> int:
        """The place of the phase that holds once so many rows were trained."""
        return max(i for i, phase in enumerate(self.phases) if phase.from_row <= rows)

    def needed(self) -> list[float]:
        """D ÷ μ of each phase, by the sleeps."""
        return [p.row_seconds * BATCH_ROWS / p.step_seconds for p in self.phases]

    def shortened(self, share: float) -> Profile:
        """The same paces over fewer rows."""
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
            is_foretold=self.is_foretold,
            first_workers=self.first_workers,
            rows=int(self.rows * share),
            phases=phases,
        )


# Needs are far from whole numbers, with headroom too, where chance would decide.
PROFILES: Final[Sequence[Profile]] = (
    Profile(
        name="starved",
        is_foretold=False,
        first_workers=1,
        rows=400_000,
        phases=(Phase(step_seconds=0.25, row_seconds=1 / 600),),
    ),
    Profile(
        name="slower model",
        is_foretold=False,
        first_workers=2,
        rows=450_000,
        phases=(
            Phase(step_seconds=0.25, row_seconds=1 / 600),
            Phase(from_row=250_000, step_seconds=0.5, row_seconds=1 / 600),
        ),
    ),
    Profile(
        name="dearer rows",
        is_foretold=True,
        first_workers=1,
        rows=400_000,
        phases=(
            Phase(step_seconds=0.4, row_seconds=1 / 800),
            Phase(from_row=150_000, step_seconds=0.4, row_seconds=1 / 370),
        ),
    ),
)


def build_rules() -> Rules:
    """The law's rules, the same for what runs and what is simulated."""
    return Rules(min_workers=1, max_workers=MAX_WORKERS, down=DOWN)
