"""The comparison of Iceberg programs: agreement of rows, missing programs, larger tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.harness.errors import BenchmarkError, DisagreementError
from benchmarks.iceberg.child import to_batch
from benchmarks.iceberg.lakes import Lake
from benchmarks.iceberg.programs import Comparison, Program, Side, compare_by

LAKE = Lake(Path("lake"), 10)
A, B, C = (Side(Program(name, f"peers:{name}"), LAKE) for name in "ABC")


@dataclass
class Machine:
    """Gives epochs of known speed and sums."""

    speeds: dict[Side, float] = field(default_factory=dict)
    sums: dict[Side, dict[str, int]] = field(default_factory=dict)
    missing: tuple[Side, ...] = ()

    def ask(self, side: Side, proves: bool) -> Any:
        """See Ask."""
        if side in self.missing:
            raise BenchmarkError("it failed:\n  no such package")
        values = {"rowsPerSecond": self.speeds.get(side, 1.0)}
        return {"values": values, "sums": {"rows": 10} | self.sums.get(side, {})}


def test_each_comparison_has_the_rounds_of_both_sides() -> None:
    machine = Machine(speeds={A: 3.0, B: 2.0})
    comparisons = [Comparison("some", A, B), Comparison("others", A, C)]
    some, others = compare_by(machine.ask, comparisons, 4)
    assert some.arms == {"B": {"rowsPerSecond": [2.0] * 4}, "A": {"rowsPerSecond": [3.0] * 4}}
    ratio = others.ratio("A", "rowsPerSecond")
    assert ratio is not None
    assert ratio.median == 3.0


def test_a_peer_that_is_not_installed_leaves_the_others() -> None:
    comparisons = [Comparison("some", A, peer) for peer in (B, C)]
    missing, other = compare_by(Machine(missing=(B,)).ask, comparisons, 4)
    assert "no such package" in missing.facts["notMeasured"]
    assert len(other.arms["A"]["rowsPerSecond"]) == 4


@pytest.mark.parametrize(("column", "fails"), [("rows", True), ("item_id", False)])
def test_other_rows_are_not_compared(column: str, fails: bool) -> None:
    """A stream without the join has other columns, but must have the same rows."""
    machine = Machine(sums={A: {"identities": 1, "identities squared": 1, "item_id": 3}})
    machine.sums[B] = machine.sums[A] | {column: 5}
    with pytest.raises(DisagreementError):
        list(compare_by(machine.ask, [Comparison("some", A, B)], 1))
    loose = [Comparison("some", A, B, "rows")]
    if fails:
        with pytest.raises(DisagreementError):
            list(compare_by(machine.ask, loose, 1))
    else:
        assert len(list(compare_by(machine.ask, loose, 1))) == 1


def test_arrow_rows_become_the_tensors_of_the_loader() -> None:
    rows = pa.table({"x": [1, 2, 3], "l": pa.array([[7], None, [8, 9]], pa.large_list(pa.int64()))})
    found = {name: tensor.tolist() for name, tensor in to_batch(rows.slice(1)).items()}
    assert found == {"x": [2, 3], "l.offsets": [0, 0, 2], "l.values": [8, 9]}
