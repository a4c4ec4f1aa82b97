"""Counts of the step `generate`: rows, errors and tokens. Workers count, the driver adds up.

All numbers are integers, so the sum is the same whatever the order of the parts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from typing import Self

from pipeline_runtime.errors import OutputError, StepError
from pipeline_runtime.measuring.base import Result

# Reasons of errors in a message; a report has all.
_MAX_SHOWN = 3
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts over rows.

    Attributes:
        rows: rows, those with an error included.
        microseconds: time in the engine, of all processes together.
        reasons: number of error rows by their reason.
    """

    rows: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    microseconds: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        """Number of rows without a text."""
        return sum(self.reasons.values())

    def to_bytes(self) -> bytes:
        """Return the counts as bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the counts in bytes, which a store may have damaged. Raises OutputError."""
        try:
            found = cls(**json.loads(content))
        except (ValueError, TypeError, RecursionError):
            found = None
        if found is None or not found._is_sound():
            raise OutputError(
                "the counts of a step generate must be what a data worker stored, but are "
                "damaged. Run again without --resume"
            )
        return found

    def _is_sound(self) -> bool:
        numbers = [getattr(self, each.name) for each in fields(self) if each.name != "reasons"]
        if not isinstance(self.reasons, dict):
            return False
        return all(type(n) is int and n >= 0 for n in [*numbers, *self.reasons.values()])

    @classmethod
    def merge(cls, parts: Sequence[Tally]) -> Self:
        """Return the counts of all rows of the parts."""
        reasons: Counter[str] = Counter()
        for part in parts:
            reasons.update(part.reasons)
        return cls(
            rows=sum(part.rows for part in parts),
            prompt_tokens=sum(part.prompt_tokens for part in parts),
            generated_tokens=sum(part.generated_tokens for part in parts),
            microseconds=sum(part.microseconds for part in parts),
            reasons=dict(sorted(reasons.items())),
        )

    def check_errors(self, most: Fraction) -> None:
        """Raise StepError if more rows have an error than allowed.

        Args:
            most: largest share of the rows, from 0 to 1.
        """
        if self.errors <= most * self.rows:
            return
        common = Counter(self.reasons).most_common(_MAX_SHOWN)
        reasons = "; ".join(f"{count:,} × {reason}" for reason, count in common)
        raise StepError(
            f"maxErrorPercent: must be at least the share of error rows, but is "
            f"{float(most * 100):g} %, and {self.errors:,} of {self.rows:,} rows have an error "
            f"({reasons}). Filter or shorten these rows in a step before; or raise "
            "maxErrorPercent, and run again with --resume, which keeps the texts of an output"
        )

    def finish(self, name: str) -> Iterator[Result]:
        """Yield each count as a result, as those of `measure` are, for the column `name`."""
        good = self.rows - self.errors
        seconds = self.microseconds / _MICROSECONDS
        top = [{"value": reason, "count": count} for reason, count in self.reasons.items()]
        yield {
            "name": name,
            "kind": "errorRows",
            "value": self.errors,
            "rows": self.rows,
            **({"top": top} if top else {}),
        }
        for kind, tokens in (
            ("promptTokens", self.prompt_tokens),
            ("generatedTokens", self.generated_tokens),
            ("tokensPerSecond", self.generated_tokens / seconds if seconds else None),
        ):
            yield {"name": name, "kind": kind, "value": tokens, "rows": good}
