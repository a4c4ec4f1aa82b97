"""The fields of the step `join`, and those that it shares with `antiJoin`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from pipeline_runtime.config.base import MAX_COLUMNS, Column, Columns, Expression, SpecModel
from pipeline_runtime.config.dataset import SourceChoice
from pipeline_runtime.config.step_model import (
    Arguments,
    Keys,
    Names,
    Side,
    StepModel,
    build_side,
    to_list,
)
from pipeline_runtime.errors import StepError

# Memory that a side table may take on each data worker unless the step sets `maxBytes`: 1 GiB.
DEFAULT_SIDE_TABLE_BYTES = 1 << 30


class KeyPair(SpecModel):
    """A column of the key that has different names on the two sides."""

    left: Column
    """Name of the column in the rows."""
    right: Column
    """Name of the column in the side table."""


def _find_key_form(key: object) -> str:
    return "pair" if isinstance(key, dict | KeyPair) else "name"


# Only one member of the union is tried, so that its errors alone are reported.
JoinKey = Annotated[
    Annotated[Column, Tag("name")] | Annotated[KeyPair, Tag("pair")],
    Discriminator(_find_key_form),
]
JoinKeys = Annotated[tuple[JoinKey, ...], Field(min_length=1, max_length=MAX_COLUMNS)]


class SideTableStep(SourceChoice, StepModel):
    """The fields that joins share: a small table, the keys, and a bound on its memory."""

    unhashed_fields: ClassVar[tuple[str, ...]] = ("maxBytes", "strategy")

    keys: JoinKeys
    """The key: columns by name or, if the two sides name them differently, as `left` and
    `right`."""
    where: Expression | None = None
    """Condition for the rows of the side table that are used."""
    max_bytes: Annotated[int, Field(ge=1, le=1 << 40)] = DEFAULT_SIDE_TABLE_BYTES
    """Largest size of the side table, or of its parts, in the memory of each worker."""
    strategy: Literal["Auto", "Broadcast", "Bucket", "Exchange"] = "Auto"
    """`Broadcast` keeps the whole side table in memory, `Bucket` the parts for some buckets of two
    tables that have buckets by the key. `Exchange` writes the side table to such parts first.
    `Auto` takes the first of these that fits."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from super().rules()
        lefts: set[str] = set()
        rights: set[str] = set()
        for index, (left, right) in enumerate(zip(self.left_keys, self.right_keys, strict=True)):
            if left in lefts or right in rights:
                name, side = (left, "left") if left in lefts else (right, "right")
                column = "column" if left == right else f"{side} column"
                message = f"must not repeat a {column}, got {name!r} twice; remove one"
                yield f"keys[{index}]", message
            lefts.add(left)
            rights.add(right)

    @classmethod
    def shorten(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**fields, "keys": [_shorten_key(key) for key in fields["keys"]]}

    @property
    def left_keys(self) -> tuple[str, ...]:
        """The key's columns in the rows."""
        return tuple(key.left if isinstance(key, KeyPair) else key for key in self.keys)

    @property
    def right_keys(self) -> tuple[str, ...]:
        """The key's columns in the side table."""
        return tuple(key.right if isinstance(key, KeyPair) else key for key in self.keys)

    def describe(self) -> str:
        return f"{self.source.label} on {', '.join(self.left_keys)}"

    @classmethod
    def from_python(
        cls,
        uri: Side,
        on: Keys | None = None,
        *,
        left_on: Names | None = None,
        right_on: Names | None = None,
        keys: Keys | None = None,
        s3: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Arguments:
        """Return the fields.

        Args:
            uri: The side table: one or several files, directories or globs; or the fields of
                `iceberg`, such as `{"catalog": "lake", "table": "db.users"}`.
            on: The key: columns by name, or a mapping of the rows' columns to the side table's.
            left_on: The key's columns in the rows, with `right_on` instead of `on`.
            right_on: The key's columns in the side table.
            keys: The same as `on`, as a manifest names it.
            s3: Access to an S3-compatible store, as in a manifest.
            options: `where`, `max_bytes` and `strategy` of a manifest.

        Raises:
            StepError: the key is not given in exactly one way.
        """
        return options | {
            **build_side(uri, s3),
            "keys": _build_keys(on=on, keys=keys, left_on=left_on, right_on=right_on),
        }

    def find_side_expressions(self) -> Iterator[tuple[str, str]]:
        if self.where:
            yield "where", self.where

    def find_inputs(self) -> Iterable[str]:
        return self.left_keys

    def find_side_table(self) -> SourceChoice:
        return self


class JoinStep(SideTableStep):
    """Add columns of the side table to the rows whose key is in it (a null key never matches)."""

    is_preprocessing: ClassVar[bool] = True

    how: Literal["Inner", "Left"] = "Left"
    """`Left` keeps rows without a match."""
    columns: Columns | None = None
    """Columns of the side table; all but the key if absent."""

    @classmethod
    def from_python(
        cls,
        uri: Side,
        on: Keys | None = None,
        *,
        left_on: Names | None = None,
        right_on: Names | None = None,
        keys: Keys | None = None,
        how: str = "left",
        columns: Names | None = None,
        s3: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Arguments:
        """Return the fields.

        Args:
            uri: The side table: one or several files, directories or globs; or the fields of
                `iceberg`, such as `{"catalog": "lake", "table": "db.users"}`.
            on: The key: columns by name, or a mapping of the rows' columns to the side table's.
            left_on: The key's columns in the rows, with `right_on` instead of `on`.
            right_on: The key's columns in the side table.
            keys: The same as `on`, as a manifest names it.
            how: `left` keeps rows without a match, `inner` drops them.
            columns: Columns of the side table; all but the key if absent.
            s3: Access to an S3-compatible store, as in a manifest.
            options: `where`, `max_bytes` and `strategy` of a manifest.

        Raises:
            StepError: the key is not given in exactly one way.
        """
        key: Arguments = {"on": on, "keys": keys, "left_on": left_on, "right_on": right_on}
        fields = super().from_python(uri, s3=s3, **key, **options)
        return fields | {"how": how, "columns": to_list(columns)}

    def find_outputs(self) -> frozenset[str] | None:
        return None if self.columns is None else frozenset(self.columns)


def _shorten_key(key: Any) -> Any:
    """Return the name of a column that is a pair of equal names."""
    is_pair = isinstance(key, dict)
    return key["left"] if is_pair and key["left"] == key["right"] else key


def _build_keys(
    *, on: Keys | None, keys: Keys | None, left_on: Names | None, right_on: Names | None
) -> Any:
    """Return the key of a join as `keys` of a manifest; a mapping stands for pairs of columns.

    Raises:
        StepError: the key is not given in exactly one way.
    """
    left, right = to_list(left_on), to_list(right_on)
    sides = [side for side in (left, right) if side is not None]
    given = [key for key in (on, keys) if key is not None]
    is_paired = left is not None and right is not None and len(left) == len(right)
    if is_paired != bool(sides) or len(given) + is_paired != 1:
        raise StepError(
            "a join: must have the key once: as on or keys, or as left_on and right_on of equally "
            f"many columns; got on={on!r}, keys={keys!r}, left_on={left!r} and right_on={right!r}"
        )
    if given:
        (key,) = given
        if isinstance(key, str):
            return [key]
        return key if isinstance(key, Mapping) else list(key)
    pairs = zip(left or (), right or (), strict=True)
    return [{"left": one, "right": other} for one, other in pairs]
