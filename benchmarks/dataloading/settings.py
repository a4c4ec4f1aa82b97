"""Settings of the benchmark, and its epochs by their part in it."""

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

# Half of the sample data's days, so that there is something for the planner to push down.
ABLATION_WHERE = "day >= '2026-01-05'"
ALL_ON = "all on"
# Not an optimisation: what the default shuffle costs, which the comparison goes without.
ROW_SHUFFLE_ON = "row shuffle on"
# Arrow gives memory back as it does by itself: set for a process, not in a manifest.
MEMORY_KEPT_OFF = "memory kept off"
# On nested files, each request once: what shows there alone.
NESTED_ALL_ON = "nested, all on"
_PUSHDOWN_OFF: Final = ("pushdown", False)
# By variant: what of `spec.pipelineOptions` differs from the default.
SWITCHES: Final[Mapping[str, tuple[tuple[str, bool | str], ...]]] = {
    "pushdown off": (_PUSHDOWN_OFF,),
    "late materialisation off": (("lateMaterialization", False),),
    # Where statistics prune, little is left to it.
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
    """The variant with which one is compared."""
    return NESTED_ALL_ON if variant in ABLATIONS["nested"] else ALL_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings: what to measure, and how often.

    Args:
        table: of the comparison; the same rows in every layout.
        tuning_table: on which the peers' settings are chosen.
        small: of the training steps.
        loaders: who is compared, the subject first.
        layouts, forms, levels: the cells.
        rounds: that count, at each level.
        keeps_all_rounds: whether they do whatever their calibration.
        finals: how often the fastest settings of a peer run again.
        starters: whose start is measured, in fresh processes and of the next epoch.
        starts: how often a fresh process starts, at each level.
        fresh_proofs: whether proofs run in fresh processes; else there is no memory of them.
        trained: who feeds the model, at each of `train_levels`.
        ablations: variants of Lastmile, of heavy work.
        quick: whether speeds mean nothing.
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
        """The contenders that take turns."""
        return list_contenders(self.loaders, self.layouts, self.forms)

    @property
    def floors(self) -> list[Contender]:
        """The contenders of each layout that only decode."""
        return list_contenders(FLOORS, self.layouts)


@dataclass(slots=True, kw_only=True)
class Measured:
    """All epochs, by the part of the schedule that they belong to."""

    settings: Settings
    best: dict[tuple[str, Contender], Tuning] = field(default_factory=dict)  # (level, contender)
    tuning: list[tuple[Contender, Tuning, Epoch, int]] = field(default_factory=list)
    proofs: dict[str, dict[Contender, Epoch]] = field(default_factory=dict)  # by level
    rounds: dict[str, Rounds] = field(default_factory=dict)  # by level
    starts: list[tuple[Contender, Epoch]] = field(default_factory=list)
    train: list[Epoch] = field(default_factory=list)
    ablation: list[tuple[str, Epoch]] = field(default_factory=list)
