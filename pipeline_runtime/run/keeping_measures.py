"""Keeps the results of steps that measure rows in `measures.json`, and reports them.

The file lies in the run's folder on the artifacts store before a table is in place. So an attempt
that finds the table in place, and the spooled rows removed, still reports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.files import write_atomically
from pipeline_runtime.measuring.base import Result
from pipeline_runtime.output.observed import find_observers
from pipeline_runtime.plan.model import PlannedStep
from pipeline_runtime.report.files.measures_file import (
    MEASURES_FILE,
    MeasureResult,
    MeasuresFile,
    parse_measures,
)
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import read_file, write_files
from pipeline_runtime.steps.observing import ObservingStep

# A metric of 1,000 groups has about 500 KB.
_MAX_BYTES = 256 << 20
# With so many, one row in a hundred keeps its own value.
_FEW_ROWS = 100


class KeptMeasures:
    """The measures of a run.

    Attributes:
        files: names of the files that `report` has written.
        warnings: what a person should know about the results.
    """

    def __init__(self, steps: Sequence[PlannedStep], run_location: Location) -> None:
        self._run_location = run_location
        self._steps = find_observers(steps)
        self._found: MeasuresFile | None = None
        self.files: tuple[str, ...] = ()
        self.warnings: tuple[str, ...] = ()

    @property
    def steps(self) -> Mapping[str, ObservingStep]:
        """The steps that observe rows, in the order of the pipeline, by their paths."""
        return self._steps

    def keep(self, found: Sequence[Sequence[Result]]) -> None:
        """Store the results of each step, of all rows. Raises StoreError."""
        if not self._steps:
            return
        pairs = zip(self._steps, found, strict=True)
        results = [
            MeasureResult.model_validate({"step": path, **result})
            for path, found in pairs
            for result in found
        ]
        self._found = MeasuresFile(version=1, measures=tuple(results))
        files = {MEASURES_FILE: self._found.to_bytes()}
        write_files(self._run_location, files, "store the measures of the run")

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for the log, once `keep` was called."""
        return tuple(f"warning: {text}" for text in _warn(self._found)) if self._found else ()

    def report(self, folder: Path) -> Sequence[MeasureResult]:
        """Write the file into the folder of the report, and return the measures.

        There are none if not all rows have been measured. Raises OSError.
        """
        if not self._steps:
            return ()
        try:
            found = self._found or self._load()
        except LastmileError as error:
            self.warnings = (f"the measures of the run cannot be read: {error}",)
            return ()
        if found is None:
            return ()
        write_atomically(folder / MEASURES_FILE, found.to_bytes())
        self.files = (MEASURES_FILE,)
        self.warnings = tuple(_warn(found))
        return found.measures

    def _load(self) -> MeasuresFile | None:
        place = self._run_location.join(MEASURES_FILE)
        content = read_file(place, "read the measures of the run", _MAX_BYTES)
        return parse_measures(content, place.uri) if content else None


def _warn(found: MeasuresFile) -> Iterator[str]:
    """Yield a warning for each result that is not exactly what its name says."""
    few = {
        measure.step: rows
        for measure in found.measures
        if 0 < (rows := (measure.model_extra or {}).get("rowsPerPermutation", 0)) < _FEW_ROWS
    }
    for step, rows in few.items():
        yield (
            f"{step}: in the ablation, a row exchanges values with the rows of its chunk, which "
            f"are {rows:,.0f} on average, so that importances may be too small. Read longer row "
            "groups, or filter after the step"
        )
    for measure in found.measures:
        where = f"measure {measure.name}"
        extra = measure.model_extra or {}
        if measure.kind == "invalidRows" and measure.value:
            reasons = " and ".join(
                f"{count:,} for the {role}" for role, count in measure.left_out.items()
            )
            yield (
                f"{measure.step}: the model {measure.name} could not score {measure.value:,.0f} of "
                f"{measure.rows:,} rows ({reasons}), so that its outputs are null there "
                "(onInvalid: SetNull)"
            )
        if count := extra.get("scatteredGroups"):
            yield (
                f"{where}: about {count:,} groups are in several places of the table, and each "
                "place counted as a group of its own. Sort the table by the column of `per`"
            )
        if count := extra.get("largeGroups"):
            yield f"{where}: {count:,} groups have too many rows for one group and are left out"
        if extra.get("groupsAreTop") is False:
            yield (
                f"{where}: groupBy has too many groups to keep all, so that some of those with "
                "the most rows may be in `other`. Group by columns with fewer values"
            )
        if extra.get("isComplete") is False:
            yield (
                f"{where}: the column has more values than maxValues, so that only a sample of "
                "them is counted. Raise maxValues"
            )
