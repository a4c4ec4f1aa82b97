"""The values that a state is made of, and their merge: associative, commutative, exact.

Each has one form only, so that equal values are equal bit for bit: keys are sorted and unique, and
fractions are below 1. `from_parts` reads what came from a store, and checks all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from pipeline_runtime.errors import OutputError
from pipeline_runtime.measuring.exact import (
    FRACTION_BITS,
    Floats,
    Hashes,
    Ints,
    carry,
    join_amounts,
)

AnyArray = npt.NDArray[Any]
# Digits of a number of a state: a sum of 2**64 float64 has fewer than 2,300 bits.
_MAX_HEX_DIGITS = 600
_MAX_INT64 = (1 << 63) - 1


class DamagedState(OutputError):
    """The bytes of a state are not what an accumulator wrote."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the state of a metric must be what a data worker stored, but {reason}. Run again "
            "without --resume"
        )


class Value(Protocol):
    """A value of a state."""

    def merge(self, others: Sequence[Self]) -> Self:
        """Return the value of the rows of all of them."""
        ...

    def to_parts(self) -> tuple[Any, Sequence[AnyArray]]:
        """Return a JSON value, and arrays."""
        ...

    def from_parts(self, fields: Any, arrays: Sequence[AnyArray]) -> Self:
        """Return the value in these parts, which has the shape and the limits of this one.

        Raises DamagedState.
        """
        ...


State = Mapping[str, Value]


def state_to_parts(state: State) -> tuple[Any, list[AnyArray]]:
    """Return a state as a JSON value, and arrays."""
    document: dict[str, Any] = {}
    arrays: list[AnyArray] = []
    for name, value in state.items():
        fields, own = value.to_parts()
        document[name] = [fields, len(own)]
        arrays += own
    return document, arrays


def state_from_parts(document: Any, arrays: Iterator[AnyArray], like: State) -> dict[str, Value]:
    """Return the state in a JSON value, and in the next arrays.

    Args:
        like: a state of no row of the same metric.

    Raises DamagedState.
    """
    if not isinstance(document, dict) or list(document) != list(like):
        raise DamagedState(f"a metric must have the values {', '.join(like)}")
    state = {}
    for name, value in like.items():
        match document[name]:
            case [fields, int(count)]:
                state[name] = value.from_parts(fields, list(islice(arrays, max(0, count))))
            case _:
                raise DamagedState(f"its value {name} has no fields and arrays")
    return state


def merge_states(states: Sequence[State]) -> dict[str, Value]:
    """Return the state of the rows of all states; at least one is given."""
    first, *others = states
    return {name: value.merge([s[name] for s in others]) for name, value in first.items()}


@dataclass(frozen=True, slots=True)
class Sums:
    """A fixed number of integers, of any size, that are added."""

    numbers: tuple[int, ...]

    def merge(self, others: Sequence[Self]) -> Self:
        every = zip(self.numbers, *(other.numbers for other in others), strict=True)
        return type(self)(tuple(map(sum, every)))

    def to_parts(self) -> tuple[Any, Sequence[AnyArray]]:
        return [f"{number:x}" for number in self.numbers], ()

    def from_parts(self, fields: Any, arrays: Sequence[AnyArray]) -> Self:
        if not isinstance(fields, list) or len(fields) != len(self.numbers):
            raise DamagedState(f"it must have {len(self.numbers)} sums")
        if any(not isinstance(text, str) or len(text) > _MAX_HEX_DIGITS for text in fields):
            raise DamagedState("a sum is no number")
        try:
            return type(self)(tuple(int(text, 16) for text in fields))
        except ValueError as error:
            raise DamagedState("a sum is no number") from error


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Amounts by bucket: of each bucket, an amount of each of a few classes.

    Attributes:
        num_buckets: buckets are from 0 to `num_buckets` - 1.
        buckets_B: int64, those with an amount, in ascending order.
        whole_BC: int64, the whole parts of the amounts.
        fraction_BC: int64, their fractions, in units of 2**-32; below 1.
    """

    num_buckets: int
    buckets_B: Ints
    whole_BC: Ints
    fraction_BC: Ints

    @classmethod
    def empty(cls, num_buckets: int, num_classes: int) -> Self:
        """Return a histogram of no row."""
        none = np.zeros((0, num_classes), dtype=np.int64)
        return cls(num_buckets, np.zeros(0, dtype=np.int64), none, none)

    def count(self, buckets_N: Ints, classes_N: Ints) -> Self:
        """Return the number of rows of each bucket and class."""
        keys, counts = np.unique(self._find_keys(buckets_N, classes_N), return_counts=True)
        return self._spread(keys, counts, np.zeros_like(counts))

    def add(self, buckets_N: Ints, classes_N: Ints, amounts: tuple[Ints, Ints]) -> Self:
        """Return the amounts of each bucket and class.

        Args:
            amounts: of each row, as `split_weights` returns them.
        """
        keys_N = self._find_keys(buckets_N, classes_N)
        order = np.argsort(keys_N, kind="stable")
        keys, starts = np.unique(keys_N[order], return_index=True)
        if not len(keys):
            return self._spread(keys, keys, keys)
        whole, fraction = (np.add.reduceat(part[order], starts) for part in amounts)
        return self._spread(keys, *carry(whole, fraction))

    def _find_keys(self, buckets_N: Ints, classes_N: Ints) -> Ints:
        keys_N: Ints = buckets_N * self.whole_BC.shape[1] + classes_N
        return keys_N

    def _spread(self, keys: Ints, whole: Ints, fraction: Ints) -> Self:
        """Return amounts by bucket and class; keys, which are both in one, are unique."""
        num_classes = self.whole_BC.shape[1]
        buckets_B, places = np.unique(keys // num_classes, return_inverse=True)
        whole_BC, fraction_BC = np.zeros((2, len(buckets_B), num_classes), dtype=np.int64)
        whole_BC[places, keys % num_classes] = whole
        fraction_BC[places, keys % num_classes] = fraction
        return replace(self, buckets_B=buckets_B, whole_BC=whole_BC, fraction_BC=fraction_BC)

    def merge(self, others: Sequence[Self]) -> Self:
        every = [h for h in (self, *others) if len(h.buckets_B)]
        if len(every) < 2:
            return every[0] if every else self
        return self._gather(
            np.concatenate([each.buckets_B for each in every]),
            np.concatenate([each.whole_BC for each in every]),
            np.concatenate([each.fraction_BC for each in every]),
        )

    def _gather(self, buckets_N: Ints, whole_NC: Ints, fraction_NC: Ints) -> Self:
        """Add up the rows of each bucket."""
        if not len(buckets_N):
            return self.empty(self.num_buckets, whole_NC.shape[1])
        order = np.argsort(buckets_N, kind="stable")
        buckets_B, starts = np.unique(buckets_N[order], return_index=True)
        whole_BC = np.add.reduceat(whole_NC[order], starts)
        if fraction_NC.any():
            fraction_BC = np.add.reduceat(fraction_NC[order], starts)
        else:
            fraction_BC = np.zeros_like(whole_BC)
        whole_BC, fraction_BC = carry(whole_BC, fraction_BC)
        return replace(self, buckets_B=buckets_B, whole_BC=whole_BC, fraction_BC=fraction_BC)

    def list_amounts(self) -> list[list[int]]:
        """Return the amounts of each class, by bucket, in units of 2**-32."""
        columns = zip(self.whole_BC.T, self.fraction_BC.T, strict=True)
        return [join_amounts(whole, fraction) for whole, fraction in columns]

    def to_parts(self) -> tuple[Any, Sequence[AnyArray]]:
        steps = np.diff(self.buckets_B, prepend=0)
        fractions = [self.fraction_BC] if self.fraction_BC.any() else []
        return None, [steps, self.whole_BC, *fractions]

    def from_parts(self, fields: Any, arrays: Sequence[AnyArray]) -> Self:
        if len(arrays) not in (2, 3):
            raise DamagedState("a histogram must have two or three arrays")
        steps, *amounts = (array.astype(np.int64) for array in arrays)
        num_classes = self.whole_BC.shape[1]
        if any(len(amount) != len(steps) * num_classes for amount in amounts):
            raise DamagedState("the arrays of a histogram differ in length")
        if (steps < 0).any() or (steps[1:] == 0).any() or (steps >= self.num_buckets).any():
            raise DamagedState("the buckets of a histogram are out of order")
        buckets_B = np.cumsum(steps)
        if len(buckets_B) > self.num_buckets or (buckets_B >= self.num_buckets).any():
            raise DamagedState("a bucket of a histogram is out of range")
        whole_BC = amounts[0].reshape(-1, num_classes)
        fraction_BC = amounts[1].reshape(-1, num_classes) if amounts[1:] else whole_BC * 0
        if (whole_BC < 0).any() or (fraction_BC < 0).any() or (fraction_BC >> FRACTION_BITS).any():
            raise DamagedState("an amount of a histogram is out of range")
        return replace(self, buckets_B=buckets_B, whole_BC=whole_BC, fraction_BC=fraction_BC)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The `limit` values with the smallest hashes, and how often each occurs.

    A value that is among the smallest of all rows is so in every part that has it. So what is kept
    of it is complete, whatever the parts and their order.

    Attributes:
        hashes_K: uint64 in ascending order.
        counts_K: int64, occurrences of each.
        texts_K: the values, if they are kept; else empty.
        rest: occurrences of other values.
    """

    limit: int
    hashes_K: Hashes
    counts_K: Ints
    texts_K: tuple[Any, ...]
    has_texts: bool = False
    rest: int = 0

    @classmethod
    def empty(cls, limit: int, *, has_texts: bool = False) -> Self:
        """Return a sample of no row."""
        none = np.zeros(0, dtype=np.uint64)
        return cls(limit, none, none.astype(np.int64), (), has_texts)

    def count(self, hashes_N: Hashes) -> tuple[Self, Ints]:
        """Return the sample of these rows without texts, and the first row of each value in it."""
        hashes, first, counts = np.unique(hashes_N, return_index=True, return_counts=True)
        return self._cut(hashes, counts, (), 0), first[: self.limit]

    def with_texts(self, texts: Sequence[Any]) -> Self:
        """Return the sample with the texts of its values."""
        return replace(self, texts_K=tuple(texts))

    def _cut(self, hashes: Hashes, counts: Ints, texts: Sequence[Any], rest: int) -> Self:
        return replace(
            self,
            hashes_K=hashes[: self.limit],
            counts_K=counts[: self.limit].astype(np.int64),
            texts_K=tuple(texts[: self.limit]),
            rest=rest + int(counts[self.limit :].sum()),
        )

    def merge(self, others: Sequence[Self]) -> Self:
        every = (self, *others)
        found = np.concatenate([each.hashes_K for each in every])
        hashes, first, places = np.unique(found, return_index=True, return_inverse=True)
        counts = np.zeros(len(hashes), dtype=np.int64)
        np.add.at(counts, places, np.concatenate([each.counts_K for each in every]))
        texts: list[Any] = [text for each in every for text in each.texts_K]
        texts = [texts[place] for place in first.tolist()] if self.has_texts else []
        return self._cut(hashes, counts, texts, sum(each.rest for each in every))

    @property
    def is_complete(self) -> bool:
        """Return whether it has all values."""
        return self.rest == 0

    def estimate(self) -> float:
        """Return the number of different values: the exact one, or an unbiased estimate of it.

        The estimate is that of the k minimum values (Bar-Yossef et al., "Counting distinct
        elements in a data stream", 2002).
        """
        if self.is_complete:
            return float(len(self.hashes_K))
        return (self.limit - 1) * 2.0**64 / (float(self.hashes_K[-1]) + 1.0)

    def to_parts(self) -> tuple[Any, Sequence[AnyArray]]:
        texts = list(self.texts_K) if self.has_texts else None
        return [self.rest, texts], [self.hashes_K, self.counts_K]

    def from_parts(self, fields: Any, arrays: Sequence[AnyArray]) -> Self:
        if not isinstance(fields, list) or len(fields) != 2 or len(arrays) != 2:
            raise DamagedState("a sample must have a number, texts and two arrays")
        rest, texts = fields
        hashes, counts = arrays[0].astype(np.uint64), arrays[1].astype(np.int64)
        if len(hashes) > self.limit or len(hashes) != len(counts) or (counts < 1).any():
            raise DamagedState("the arrays of a sample differ in length, or are too long")
        if (hashes[1:] <= hashes[:-1]).any():
            raise DamagedState("the hashes of a sample are out of order")
        if not isinstance(rest, int) or not 0 <= rest <= _MAX_INT64:
            raise DamagedState("a count of a sample is out of range")
        is_listed = isinstance(texts, list) and len(texts) == len(hashes)
        if is_listed is not self.has_texts:
            raise DamagedState("the texts of a sample are missing")
        return replace(
            self, hashes_K=hashes, counts_K=counts, texts_K=tuple(texts or ()), rest=rest
        )


@dataclass(frozen=True, slots=True, eq=False)
class GroupRows:
    """The rows of a few groups, each of at most `limit` rows; of larger groups, their number.

    Attributes:
        hashes_N: uint64, the group of each row; rows are sorted by group, score and label.
        scores_N, labels_N: float64.
        large: the number of rows of each group that has more than `limit`.
    """

    limit: int
    hashes_N: Hashes
    scores_N: Floats
    labels_N: Floats
    large: Mapping[int, int]

    @classmethod
    def empty(cls, limit: int) -> Self:
        """Return a value of no row."""
        none = np.zeros(0)
        return cls(limit, none.astype(np.uint64), none, none, {})

    def of(self, hashes_N: Hashes, scores_N: Floats, labels_N: Floats) -> Self:
        """Return the value of these rows."""
        return self._bound(hashes_N, scores_N, labels_N, {})

    def merge(self, others: Sequence[Self]) -> Self:
        every = (self, *others)
        large: dict[int, int] = {}
        for each in every:
            for group, count in each.large.items():
                large[group] = large.get(group, 0) + count
        return self._bound(
            np.concatenate([each.hashes_N for each in every]),
            np.concatenate([each.scores_N for each in every]),
            np.concatenate([each.labels_N for each in every]),
            large,
        )

    def _bound(
        self, hashes_N: Hashes, scores_N: Floats, labels_N: Floats, large: dict[int, int]
    ) -> Self:
        """Sort the rows, and keep only the number of those of large groups."""
        order = np.lexsort((labels_N, scores_N, hashes_N))
        hashes_N, scores_N, labels_N = hashes_N[order], scores_N[order], labels_N[order]
        groups, counts = np.unique(hashes_N, return_counts=True)
        is_large = counts > self.limit
        for group, count in zip(groups.tolist(), counts.tolist(), strict=True):
            if count > self.limit or group in large:
                large[group] = large.get(group, 0) + count
        if large:
            is_large = np.isin(groups, np.array(list(large), dtype=np.uint64))
            is_kept = np.repeat(~is_large, counts)
            hashes_N, scores_N, labels_N = hashes_N[is_kept], scores_N[is_kept], labels_N[is_kept]
        large = dict(sorted(large.items()))
        return replace(self, hashes_N=hashes_N, scores_N=scores_N, labels_N=labels_N, large=large)

    def to_parts(self) -> tuple[Any, Sequence[AnyArray]]:
        large = [[f"{group:x}", count] for group, count in self.large.items()]
        return large, [self.hashes_N, self.scores_N, self.labels_N]

    def from_parts(self, fields: Any, arrays: Sequence[AnyArray]) -> Self:
        if len(arrays) != 3 or len({len(array) for array in arrays}) != 1:
            raise DamagedState("the arrays of groups differ in length")
        hashes, scores, labels = arrays
        if not np.isfinite(labels.astype(np.float64)).all() or np.isnan(scores).any():
            raise DamagedState("a row of a group is no number")
        try:
            large = {int(group, 16): int(count) for group, count in fields}
        except (TypeError, ValueError) as error:
            raise DamagedState("the large groups are no numbers") from error
        bounds = (min(large.values(), default=1), max(large, default=0))
        if bounds[0] < 1 or bounds[1] >= 1 << 64 or min(large, default=0) < 0:
            raise DamagedState("a large group is out of range")
        return self._bound(
            hashes.astype(np.uint64), scores.astype(np.float64), labels.astype(np.float64), large
        )
