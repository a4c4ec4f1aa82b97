"""Bars: the targets of the project, and whether the figures of a run meet them.

A ratio meets its target if its lower 95 % bound does; seconds are judged by their median. A target
without a measured cell is reported as not measured. Too few rows or rounds make a run indicative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.dataloading.peers import DATALOADER, FLOOR, LOADER, Contender

Document = dict[str, Any]
WORKS: Final = ("none", "heavy")  # the levels that have targets
MIN_ROWS: Final = 10_000_000
MIN_ROUNDS: Final = 7
MAX_LOAD: Final = 0.5  # average of the last minute; with more, other work sometimes uses a core

_FLAT = ("flat", "expanded")
_FLAT_DEDUPLICATED = ("flat", "deduplicated")
_NESTED = ("nested", "deduplicated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A target: least multiples of the peer's speed, by level of work in the order of `WORKS`.

    Attributes:
        is_of_peer: the target is the peer's: a multiple of the subject's speed.
    """

    name: str
    subject: tuple[str, str]  # layout and form
    peer: str
    peer_cell: tuple[str, str]
    at_least: tuple[float, float]
    is_of_peer: bool = False


BARS: Final = (
    Bar(
        name="flat files, expanded, against the best DataLoader",
        subject=_FLAT,
        peer=DATALOADER,
        peer_cell=_FLAT,
        at_least=(1.4, 1.4),
    ),
    Bar(
        name="flat files, deduplicated, against the best DataLoader, expanded",
        subject=_FLAT_DEDUPLICATED,
        peer=DATALOADER,
        peer_cell=_FLAT,
        at_least=(1.8, 1.8),
    ),
    Bar(
        name="flat files, deduplicated, against the best DataLoader, deduplicated",
        subject=_FLAT_DEDUPLICATED,
        peer=DATALOADER,
        peer_cell=_FLAT_DEDUPLICATED,
        at_least=(1.3, 1.3),
    ),
    Bar(
        name="flat files, share of the decode floor",
        subject=_FLAT,
        peer=FLOOR,
        peer_cell=_FLAT,
        at_least=(0.9, 0.9),
    ),
    Bar(
        name="Pipeline.loader on flat files, share of the speed of a run's feed",
        subject=_FLAT,
        peer=LOADER,
        peer_cell=_FLAT,
        at_least=(0.97, 0.97),
        is_of_peer=True,
    ),
    Bar(
        name="nested files against the best DataLoader on flat files",
        subject=_NESTED,
        peer=DATALOADER,
        peer_cell=_FLAT,
        at_least=(4.0, 4.0),
    ),
    Bar(
        name="nested files against the best DataLoader on nested files",
        subject=_NESTED,
        peer=DATALOADER,
        peer_cell=_NESTED,
        at_least=(1.2, 1.2),
    ),
    Bar(
        name="flat files against stock Ray Data",
        subject=_FLAT,
        peer="ray-stock",
        peer_cell=_FLAT,
        at_least=(4.0, 8.0),
    ),
    Bar(
        name="nested files against stock Ray Data on flat files",
        subject=_NESTED,
        peer="ray-stock",
        peer_cell=_FLAT,
        at_least=(12.0, 20.0),
    ),
    Bar(
        name="flat files against two threads in one process",
        subject=_FLAT,
        peer="threads",
        peer_cell=_FLAT,
        at_least=(0.95, 0.95),
    ),
)
# Seconds of the subject on flat files: the field of the throughput entry, and the most.
START_BARS: Final = (
    ("first batch of a fresh process, s", "coldFirstBatchSeconds", 1.5),
    ("first batch of the next epoch, s", "nextFirstBatchSeconds", 0.3),
)


def judge(
    comparisons: Sequence[Mapping[str, Any]], subjects: Mapping[str, Mapping[str, Any]]
) -> list[Document]:
    """Judge every target at every level of work.

    Args:
        comparisons: of the results.
        subjects: the subject's entry on flat, expanded files, by level.
    """
    ratios = [row for bar in BARS for row in _judge_ratios(bar, comparisons)]
    return ratios + [row for start in START_BARS for row in _judge_starts(start, subjects)]


def _judge_ratios(bar: Bar, comparisons: Sequence[Mapping[str, Any]]) -> Iterator[Document]:
    layout, form = bar.subject
    subject = Contender(loader="", layout=layout, form=form)
    peer = Contender(loader=bar.peer, layout=bar.peer_cell[0], form=bar.peer_cell[1])
    for work, bound in zip(WORKS, bar.at_least, strict=True):
        wanted = (peer.named_for(subject), layout, form, work)
        found = next((c for c in comparisons if _key(c) == wanted), None)
        row: Document = {"bar": bar.name, "work": work, "at_least": bound}
        if found is None:
            yield row | {"measured": None, "low": None, "met": None}
        else:
            measured, low = found["ratio_median"], found["ratio_low"]
            if bar.is_of_peer:
                high = found["ratio_high"]
                measured, low = 1 / measured, None if high is None else 1 / high
            met = None if low is None else low >= bound
            yield row | {"measured": measured, "low": low, "met": met}


def _key(comparison: Mapping[str, Any]) -> tuple[str, str, str, str]:
    peer, layout, form, work = (comparison[n] for n in ("peer", "layout", "form", "work"))
    return peer, layout, form, work


def _judge_starts(
    start: tuple[str, str, float], subjects: Mapping[str, Mapping[str, Any]]
) -> Iterator[Document]:
    name, quantity, bound = start
    for work in WORKS:
        spread = subjects.get(work, {}).get(quantity)
        row: Document = {"bar": name, "work": work, "at_most": bound}
        median = spread["median"] if spread else None
        yield row | {"measured": median, "met": None if median is None else median <= bound}
