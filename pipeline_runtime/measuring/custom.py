"""The user's own accumulator: a Python object with `init`, `update`, `merge` and `finish`.

Its states are JSON values, so that they can be stored and read without running code. They are
merged in the order of the table.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pyarrow as pa

from pipeline_runtime.errors import StepError
from pipeline_runtime.measuring.base import NO_ROWS, Result, describe_rows
from pipeline_runtime.measuring.values import AnyArray, DamagedState, State, Sums

# Characters of a user's state as JSON, of each chunk. The driver has those of all groups.
MAX_STATE_CHARS = 1 << 20


class UserAccumulator(Protocol):
    """The object that the user's function returns."""

    def init(self) -> Any:
        """Return the state of no row: a JSON value."""
        ...

    def update(self, state: Any, table: pa.Table) -> Any:
        """Return the state with these rows."""
        ...

    def merge(self, left: Any, right: Any) -> Any:
        """Return the state of the rows of both; `merge(init(), state)` is equal to `state`."""
        ...

    def finish(self, state: Any) -> float | Mapping[str, Any] | None:
        """Return a number, or an object with more results, of which `value` is shown first."""
        ...


@dataclass(frozen=True, slots=True)
class Json:
    """A user's state as JSON."""

    text: str

    @classmethod
    def of(cls, value: Any, where: str) -> Self:
        """Return a state that a function has returned. Raises StepError if it is no JSON."""
        try:
            text = json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise StepError(
                f"{where} must return a JSON value (numbers, texts, lists, objects), but: {error}"
            ) from error
        if len(text) > MAX_STATE_CHARS:
            raise StepError(
                f"{where} must return a state of at most {MAX_STATE_CHARS:,} characters of JSON, "
                f"got {len(text):,}. Keep sums instead of rows"
            )
        return cls(text)

    def merge(self, others: Sequence[Self]) -> Self:
        raise NotImplementedError("Custom.merge calls the user's code")

    def to_parts(self) -> tuple[Any, Sequence[AnyArray]]:
        return self.text, ()

    def from_parts(self, fields: Any, arrays: Sequence[AnyArray]) -> Self:
        if not isinstance(fields, str) or len(fields) > MAX_STATE_CHARS or arrays:
            raise DamagedState("a state of the user is no text")
        return type(self)(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom:
    """Calls the user's accumulator.

    Attributes:
        function: `module:name` of a class or function that returns the accumulator.
        read: the columns of its tables.
    """

    function: str
    read: tuple[str, ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(self.read)

    def load(self) -> UserAccumulator:
        """Import the function, and call it. Raises whatever it raises."""
        module, _, names = self.function.partition(":")
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
        accumulator: UserAccumulator = found()
        return accumulator

    def empty(self) -> State:
        return {"rows": NO_ROWS, "state": Json("null")}

    def update(self, table: pa.Table) -> State:
        user = self.load()
        rows = Sums((table.num_rows, *NO_ROWS.numbers[1:]))
        state = user.update(user.init(), table.select(list(self.read)))
        return {"rows": rows, "state": Json.of(state, f"{self.function}: update")}

    def merge(self, states: Sequence[State]) -> State:
        user = self.load()
        rows = NO_ROWS.merge([s for state in states if isinstance(s := state["rows"], Sums)])
        with _explaining(self.function, "merge"):
            merged = user.init()
            for state in states:
                merged = user.merge(merged, _read_state(state, user))
        return {"rows": rows, "state": Json.of(merged, f"{self.function}: merge")}

    def finish(self, state: State) -> Result:
        user, rows = self.load(), state["rows"]
        assert isinstance(rows, Sums)
        with _explaining(self.function, "finish"):
            found = user.finish(_read_state(state, user))
        results = dict(found) if isinstance(found, Mapping) else {"value": found}
        Json.of(results, f"{self.function}: finish")
        value = results.pop("value", None)
        if not isinstance(value, int | float) or not math.isfinite(value):
            value = None
        extra = {"results": results} if results else {}
        return describe_rows(rows) | {"value": value} | extra


@contextmanager
def _explaining(function: str, method: str) -> Iterator[None]:
    """Raise StepError for whatever the user's method raises."""
    try:
        yield
    except Exception as error:
        raise StepError(
            f"{function}: {method} raised {type(error).__name__}: {error}. Correct it, and run "
            "again with --resume"
        ) from error


def _read_state(state: State, user: UserAccumulator) -> Any:
    value = state["state"]
    assert isinstance(value, Json)
    found = json.loads(value.text)
    return user.init() if found is None else found
