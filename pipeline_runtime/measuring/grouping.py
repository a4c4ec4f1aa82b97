"""A metric of all rows, and of each group of rows by some columns; rare groups are one.

The groups with the smallest hashes are kept, up to a limit, and the rows of the others together. So
which groups are kept, and what is counted of them, does not depend on the parts (see
`values.Sample`). Of those kept, a result has the ones with the most rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from pipeline_runtime import hashing
from pipeline_runtime.measuring.base import Accumulator, Result
from pipeline_runtime.measuring.columns import JsonScalar, to_json
from pipeline_runtime.measuring.values import (
    AnyArray,
    DamagedState,
    State,
    state_from_parts,
    state_to_parts,
)

# Groups that a state has; a result has fewer.
MAX_GROUPS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows with equal values in the columns of a grouping."""

    values: tuple[JsonScalar, ...]
    rows: int
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of some rows, by their hashes in ascending order, and the rows of the others."""

    inner: Accumulator
    limit: int
    groups: Mapping[int, Group]
    other: State
    other_rows: int = 0

    @classmethod
    def empty(cls, inner: Accumulator, limit: int) -> Self:
        """Return the groups of no row."""
        return cls(inner=inner, limit=limit, groups={}, other=inner.empty())

    def merge(self, others: Sequence[Self]) -> Self:
        every = (self, *others)
        found: dict[int, list[Group]] = {}
        for each in every:
            for key, group in each.groups.items():
                found.setdefault(key, []).append(group)
        keys = sorted(found)
        rest = [group for key in keys[self.limit :] for group in found[key]]
        return replace(
            self,
            groups={key: self._merge_group(found[key]) for key in keys[: self.limit]},
            other=self.inner.merge([*(e.other for e in every), *(g.state for g in rest)]),
            other_rows=sum(e.other_rows for e in every) + sum(g.rows for g in rest),
        )

    def _merge_group(self, parts: Sequence[Group]) -> Group:
        if len(parts) == 1:
            return parts[0]
        state = self.inner.merge([part.state for part in parts])
        return replace(parts[0], rows=sum(part.rows for part in parts), state=state)

    def to_parts(self) -> tuple[Any, Sequence[AnyArray]]:
        other, arrays = state_to_parts(self.other)
        documents = []
        for key, group in self.groups.items():
            document, own = state_to_parts(group.state)
            documents.append([f"{key:x}", group.values, group.rows, document])
            arrays += own
        return [self.other_rows, other, documents], arrays

    def from_parts(self, fields: Any, arrays: Sequence[AnyArray]) -> Self:
        left = iter(arrays)
        match fields:
            case [int(other_rows), other, [*documents]] if len(documents) <= self.limit:
                rest = state_from_parts(other, left, self.inner.empty())
            case _:
                raise DamagedState(f"it must have at most {self.limit} groups")
        groups = dict(self._parse(document, left) for document in documents)
        if list(groups) != sorted(groups) or len(groups) != len(documents):
            raise DamagedState("its groups are out of order")
        if next(left, None) is not None:
            raise DamagedState("it has more arrays than its groups need")
        return replace(self, groups=groups, other=rest, other_rows=other_rows)

    def _parse(self, document: Any, arrays: Iterator[AnyArray]) -> tuple[int, Group]:
        match document:
            case [str(key), [*values], int(rows), state] if rows > 0:
                found = state_from_parts(state, arrays, self.inner.empty())
            case _:
                raise DamagedState("a group has no values, rows and state")
        if any(not isinstance(value, str | int | None) for value in values):
            raise DamagedState("a group has a value of another type")
        try:
            return int(key, 16), Group(values=tuple(values), rows=rows, state=found)
        except ValueError as error:
            raise DamagedState("the hash of a group is no number") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """A metric of all rows, and of groups.

    Attributes:
        whole: the metric of all rows.
        inner: the metric of a group, perhaps with less detail.
        by: columns with a value that is the group's own.
        max_groups: groups in the result; the others are together in `other`.
    """

    whole: Accumulator
    inner: Accumulator
    by: tuple[str, ...]
    max_groups: int
    limit: int = MAX_GROUPS

    @property
    def columns(self) -> frozenset[str]:
        return self.whole.columns | frozenset(self.by)

    def empty(self) -> State:
        return {**self.whole.empty(), "groups": Groups.empty(self.inner, self.limit)}

    def update(self, table: pa.Table) -> State:
        return {**self.whole.update(table), "groups": self._group(table)}

    def _group(self, table: pa.Table) -> Groups:
        empty = Groups.empty(self.inner, self.limit)
        if not table.num_rows:
            return empty
        hashes_N = hashing.hash_columns([table.column(name) for name in self.by], seed=0)
        hashes, first, places_N, counts = np.unique(
            hashes_N, return_index=True, return_inverse=True, return_counts=True
        )
        table_by_group = table.take(pa.array(np.argsort(places_N, kind="stable")))
        values = table.select(list(self.by)).take(pa.array(first[: self.limit])).to_pylist()
        groups, start = {}, 0
        for key, fields, count in zip(
            hashes[: self.limit].tolist(), values, counts.tolist(), strict=False
        ):
            rows = table_by_group.slice(start, count)
            groups[key] = Group(
                values=tuple(to_json(fields[name]) for name in self.by),
                rows=count,
                state=self.inner.update(rows),
            )
            start += count
        rest = table_by_group.slice(start)
        if not rest.num_rows:
            return replace(empty, groups=groups)
        # In the order of the table, by which a metric of users knows where their rows end.
        rest = table.filter(pa.array(places_N >= self.limit))
        return replace(
            empty, groups=groups, other=self.inner.update(rest), other_rows=rest.num_rows
        )

    def merge(self, states: Sequence[State]) -> State:
        names = list(self.whole.empty())
        whole = self.whole.merge([{name: state[name] for name in names} for state in states])
        first, *others = (state["groups"] for state in states)
        return {**whole, "groups": first.merge(others)}

    def finish(self, state: State) -> Result:
        found = state["groups"]
        assert isinstance(found, Groups)
        whole = self.whole.finish({name: state[name] for name in self.whole.empty()})
        order = sorted(found.groups.items(), key=lambda pair: (-pair[1].rows, pair[0]))
        rest = [group for _, group in order[self.max_groups :]]
        result = whole | {
            "groupBy": list(self.by),
            "groups": [
                {"group": list(group.values), **self.inner.finish(group.state)}
                for _, group in order[: self.max_groups]
            ],
            # False if there were more groups than a state has, so that some of the most frequent
            # ones may be among the others.
            "groupsAreTop": not found.other_rows,
        }
        if rest or found.other_rows:
            other = self.inner.merge([found.other, *(group.state for group in rest)])
            result["other"] = self.inner.finish(other)
        return result
