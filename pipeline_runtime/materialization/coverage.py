"""The coverage of a table: the complete partitions, and the rows that they were made of.

It is in the summary of the snapshot that a writer commits, together with the coverage of the
snapshot before. So the newest commit tells all, even after older snapshots have expired.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.table import Table

COVERAGE_PROPERTY = "lastmile.coverage"
_VERSION = 1
# A summary comes from a store: a damaged one must not fill the memory.
_MAX_BYTES = 64 << 20

Change = Literal["new", "recipe", "window", "source", "side"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A table, or a partition of it, that rows are made of.

    Attributes:
        table: identity of the table.
        fingerprint: of its files.
        snapshot_id: the snapshot that was read; None if the table has none.
    """

    table: str
    fingerprint: str
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """The rows that a partition of a table was made of.

    Attributes:
        inputs: the partition of the source, then each side table as a whole.
        window: the conditions that chose rows of the partition; empty if all rows were.
        recipe: hash of the recipe; empty in a cache table, which has one recipe.
    """

    inputs: tuple[Input, ...]
    window: str = ""
    recipe: str = ""


Coverage = Mapping[str, Covered]
# Tells from an input then and now, and the partition or None for a side table, whether the rows are
# the same although the fingerprint is not.
IsSame = Callable[[Input, Input, str | None], bool]


def find_missing(wanted: Coverage, stored: Coverage, is_same: IsSame) -> dict[str, Change]:
    """Return the partitions that have to be computed, and the reason."""
    changes = {key: _find_change(key, wanted[key], stored.get(key), is_same) for key in wanted}
    return {key: change for key, change in changes.items() if change is not None}


def _find_change(key: str, now: Covered, then: Covered | None, is_same: IsSame) -> Change | None:
    if then is None:
        return "new"
    if then.recipe != now.recipe:
        return "recipe"
    if then.window != now.window:
        return "window"
    if len(then.inputs) != len(now.inputs):
        return "side"
    for place, (before, after) in enumerate(zip(then.inputs, now.inputs, strict=True)):
        is_equal = (before.table, before.fingerprint) == (after.table, after.fingerprint)
        if not is_equal and not is_same(before, after, None if place else key):
            return "side" if place else "source"
    return None


def encode_coverage(coverage: Coverage) -> str:
    """Return a coverage as a text for a snapshot's summary."""
    document = {
        "version": _VERSION,
        "partitions": {key: [each.window, *_list_inputs(each)] for key, each in coverage.items()},
        "recipes": {key: each.recipe for key, each in coverage.items() if each.recipe},
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def _list_inputs(covered: Covered) -> Iterator[list[Any]]:
    for each in covered.inputs:
        number = None if each.snapshot_id is None else str(each.snapshot_id)
        yield [each.table, each.fingerprint, number]


def decode_coverage(text: str) -> dict[str, Covered] | None:
    """Return the coverage in a text from a store; None if it holds none of this version."""
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b85decode(text), _MAX_BYTES)
        document = json.loads(content)
        if unpacker.unconsumed_tail or document["version"] != _VERSION:
            return None
        recipes = document.get("recipes", {})
        return {
            str(key): Covered(
                window=str(window),
                inputs=tuple(_parse_input(i) for i in inputs),
                recipe=str(recipes.get(key, "")),
            )
            for key, (window, *inputs) in document["partitions"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error):
        return None


def _parse_input(fields: Any) -> Input:
    table, fingerprint, number = fields
    return Input(
        table=str(table),
        fingerprint=str(fingerprint),
        snapshot_id=None if number is None else int(number),
    )


def read_coverage(table: Table, snapshot_id: int | None = None) -> dict[str, Covered]:
    """Return the coverage of a table, at its newest snapshot or at another one.

    A compaction keeps it. Nothing is covered once another program has committed anything else.
    """
    from pyiceberg.table.snapshots import Operation, ancestors_of

    newest = table.snapshot_by_id(snapshot_id) if snapshot_id else table.current_snapshot()
    for snapshot in ancestors_of(newest, table.metadata):
        summary = snapshot.summary
        if summary is None:
            break
        if text := summary.additional_properties.get(COVERAGE_PROPERTY):
            return decode_coverage(text) or {}
        if summary.operation != Operation.REPLACE:
            break
    return {}
