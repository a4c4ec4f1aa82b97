"""The settings of the benchmark, and the measured epochs by part of the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.dataloading.jobs import Tuning
from benchmarks.dataloading.measuring.epochs import Epoch
from benchmarks.dataloading.measuring.rounds import Rounds
from benchmarks.dataloading.peers import FLOORS, Contender, list_contenders
from benchmarks.dataloading.tables import Table
from benchmarks.dataloading.workloads import FUSION_OFF, RAY_DATA

# Half of the days of the sample data, so that the planner has a filter to push down.
ABLATION_WHERE = "day >= '2026-01-05'"
ALL_ON = "all on"
# Not an optimisation: the cost of the default shuffle, which the comparison does not use.
ROW_SHUFFLE_ON = "row shuffle on"
# Arrow releases memory by its own defaults: set for a process, not in a manifest.
MEMORY_KEPT_OFF = "memory kept off"
# Variants that only matter on nested files with each request once.
NESTED_ALL_ON = "nested, all on"
_PUSHDOWN_OFF: Final = ("pushdown", False)
# By variant: the `spec.pipelineOptions` that differ from the default.
SWITCHES: Final[Mapping[str, tuple[tuple[str, bool | str], ...]]] = {
    "pushdown off": (_PUSHDOWN_OFF,),
    "late materialisation off": (("lateMaterialization", False),),
    # After pruning by statistics, it has little to remove.
    "pushdown, late materialisation off": (_PUSHDOWN_OFF, ("lateMaterialization", False)),
    "projection off": (("projection", False),),
    "fusion off": (FUSION_OFF,),
    "kernels off": (("kernels", False),),
    "page decoding off": (("pageDecoding", False),),
    "broadcast off": (("broadcast", False),),
    "prefetch off": (("prefetch", False),),
    "ready batches off": (("readyBatches", False),),
    "readers off": (RAY_DATA,),
    "nested, page decoding off": (("pageDecoding", False),),
    "nested, deduplication off": (("deduplication", False),),
}
_FLAT = tuple(name for name in SWITCHES if not name.startswith("nested"))
_NESTED = tuple(name for name in SWITCHES if name.startswith("nested"))
ABLATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "flat": (ALL_ON, *_FLAT, MEMORY_KEPT_OFF, ROW_SHUFFLE_ON),
    "nested": (NESTED_ALL_ON, *_NESTED),
}


def base_of(variant: str) -> str:
    """Return the variant with which the given one is compared."""
    return NESTED_ALL_ON if variant in ABLATIONS["nested"] else ALL_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings: the work, the loaders, and the number of measurements.

    Args:
        table: of the comparison; the same rows in every layout.
        tuning_table: the table on which peers are tuned.
        small: the table of the training steps.
        loaders: the compared loaders, the subject first.
        layouts, forms, levels: the cells.
        rounds: valid rounds at each level.
        keeps_all_rounds: rounds are valid whatever their calibration.
        finals: how often the fastest settings of a peer run again.
        starters: the loaders whose start is measured, of fresh processes and of the next epoch.
        starts: how often a fresh process starts, at each level.
        fresh_proofs: proofs run in fresh processes; otherwise their memory is unknown.
        trained: the loaders that feed the model, at each of `train_levels`.
        ablations: variants of Lastmile with heavy work.
        quick: speeds are meaningless.
    """

    table: Table
    tuning_table: Table
    small: Table
    loaders: tuple[str, ...]
    layouts: tuple[str, ...]
    forms: tuple[str, ...]
    levels: tuple[str, ...]
    rounds: int
    keeps_all_rounds: bool
    finals: int
    starters: tuple[str, ...]
    starts: int
    fresh_proofs: bool
    trained: tuple[str, ...]
    train_levels: tuple[str, ...]
    ablations: tuple[str, ...]
    quick: bool

    @property
    def contenders(self) -> list[Contender]:
        """List the contenders that take turns."""
        return list_contenders(self.loaders, self.layouts, self.forms)

    @property
    def floors(self) -> list[Contender]:
        """List the decode floors of each layout."""
        return list_contenders(FLOORS, self.layouts)


@dataclass(slots=True, kw_only=True)
class Measured:
    """All measured epochs, by part of the schedule."""

    settings: Settings
    best: dict[tuple[str, Contender], Tuning] = field(default_factory=dict)  # (level, contender)
    tuning: list[tuple[Contender, Tuning, Epoch, int]] = field(default_factory=list)
    proofs: dict[str, dict[Contender, Epoch]] = field(default_factory=dict)  # by level
    rounds: dict[str, Rounds] = field(default_factory=dict)  # by level
    starts: list[tuple[Contender, Epoch]] = field(default_factory=list)
    train: list[Epoch] = field(default_factory=list)
    ablation: list[tuple[str, Epoch]] = field(default_factory=list)
