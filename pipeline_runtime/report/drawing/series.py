"""One metric over time as arrays, thinned to what a picture can show.

Owned here: the way from the long history to series, the thinning that keeps extremes, the moving
mean. Runs after `metrics_history`, before `curves`; pure.

Legend: N entries of one metric, T moments, S time shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# A figure is at most about 550 CSS pixels wide; two points a pixel is all that can be seen.
MAX_POINTS = 1000
# A stacked area is read for its shape; more steps than this look like noise.
MAX_STACK_POINTS = 200

# A schedule with a warm-up goes its range twice; a noisy loss goes it a hundred times.
_NOISE_RATIO = 5

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A metric's finite values in the order they were written; x is steps or seconds."""

    name: str
    steps_N: Floats
    seconds_N: Floats
    values_N: Floats
    num_not_finite: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Shares of the trainer's time, by moment; `shares_ST[i]` belongs to the name at i."""

    names: tuple[str, ...]
    seconds_T: Floats
    shares_ST: Floats


def list_names(history: pa.Table) -> list[str]:
    """Every metric's name, in the order of first appearance."""
    return list(dict.fromkeys(pc.unique(history["name"].cast(pa.string())).to_pylist()))


def select_series(history: pa.Table, name: str) -> Series:
    """One metric of the history; empty arrays when it has none."""
    rows = history.filter(pc.equal(history["name"].cast(pa.string()), name))
    values_N = rows["value"].to_numpy()
    finite_N = np.isfinite(values_N)
    return Series(
        name=name,
        steps_N=rows["step"].to_numpy().astype(np.float64)[finite_N],
        seconds_N=rows["seconds"].to_numpy()[finite_N],
        values_N=values_N[finite_N],
        num_not_finite=int((~finite_N).sum()),
    )


def select_stack(history: pa.Table, names: Sequence[str], prefix: str) -> Stack:
    """The shares `prefix + name` at every moment that any of them was written at, absent ones 0."""
    found = [select_series(history, prefix + name) for name in names]
    seconds_T = np.unique(np.concatenate([series.seconds_N for series in found]))
    shares_ST = np.zeros((len(names), len(seconds_T)))
    for row, series in zip(shares_ST, found, strict=True):
        row[np.searchsorted(seconds_T, series.seconds_N)] = series.values_N
    return thin_stack(Stack(names=tuple(names), seconds_T=seconds_T, shares_ST=shares_ST))


def thin_stack(stack: Stack, max_points: int = MAX_STACK_POINTS) -> Stack:
    """At most `max_points` moments: each the mean of its neighbours, placed at the last of them."""
    num_moments = len(stack.seconds_T)
    if num_moments <= max_points:
        return stack
    starts = np.linspace(0, num_moments, max_points, endpoint=False).astype(np.int64)
    sizes = np.diff(np.append(starts, num_moments))
    return Stack(
        names=stack.names,
        seconds_T=stack.seconds_T[starts + sizes - 1],
        shares_ST=np.add.reduceat(stack.shares_ST, starts, axis=1) / sizes,
    )


def thin_indices(values_N: Floats, max_points: int = MAX_POINTS) -> npt.NDArray[np.int64]:
    """Return the entries to draw: all, or the lowest and highest of each bucket, to keep spikes."""
    num_values = len(values_N)
    if num_values <= max_points:
        return np.arange(num_values)
    # First and last are kept besides; two entries come from every bucket.
    edges = np.linspace(0, num_values, (max_points - 2) // 2 + 1).astype(np.int64)
    kept = [0, num_values - 1]
    for start, stop in pairwise(edges.tolist()):
        bucket = values_N[start:stop]
        kept += [start + int(bucket.argmin()), start + int(bucket.argmax())]
    return np.unique(np.array(kept, dtype=np.int64))


def is_noisy(values_N: Floats) -> bool:
    """Return whether the values fluctuate far more than they change, so that a mean helps."""
    way = float(np.abs(np.diff(values_N)).sum())
    return way > _NOISE_RATIO * float(np.ptp(values_N))


def average_around(values_N: Floats, window: int) -> Floats:
    """Mean of the `window` entries around each; near the ends of as many as there are."""
    sums = np.concatenate([[0.0], np.cumsum(values_N)])
    places = np.arange(len(values_N))
    starts = np.maximum(places - window // 2, 0)
    stops = np.minimum(places + window // 2 + 1, len(values_N))
    means_N: Floats = (sums[stops] - sums[starts]) / (stops - starts)
    return means_N
