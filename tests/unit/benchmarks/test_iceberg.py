"""The comparison of Iceberg programs: equal rows, and values of both in every round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.harness.errors import DisagreementError
from benchmarks.iceberg.child import to_batch
from benchmarks.iceberg.programs import Comparison, Program, compare

A, B = (Program(name, f"peers:{name}") for name in "AB")
COMPARISON = Comparison(cell="some", subject=A, peer=B)


@dataclass
class Machine:
    """Gives epochs of known speed and sums."""

    speeds: dict[Program, float] = field(default_factory=dict)
    sums: dict[Program, dict[str, int]] = field(default_factory=dict)

    def ask(self, program: Program, proves: bool) -> Any:
        """See Ask."""
        values = {"rowsPerSecond": self.speeds.get(program, 1.0), "peakBytes": 5}
        return {"values": values, "sums": {"rows": 10} | self.sums.get(program, {})}


def test_a_cell_has_the_rounds_of_both_programs() -> None:
    cell = compare(COMPARISON, Machine(speeds={A: 3.0, B: 2.0}).ask, 4)
    assert cell.arms == {"B": {"rowsPerSecond": [2.0] * 4}, "A": {"rowsPerSecond": [3.0] * 4}}
    ratio = cell.ratio("A", "rowsPerSecond")
    assert ratio is not None
    assert ratio.median == 1.5


def test_a_cell_about_memory_has_peaks() -> None:
    cell = compare(replace(COMPARISON, of_memory=True), Machine().ask, 2)
    assert cell.arms["A"]["peakBytes"] == [5, 5]


@pytest.mark.parametrize(("column", "fails"), [("rows", True), ("recent_items", False)])
def test_other_rows_are_not_compared(column: str, fails: bool) -> None:
    """A stream with the join has more columns, but must have the same rows."""
    machine = Machine(sums={B: {"item_id": 3}, A: {"item_id": 3, column: 5}})
    with pytest.raises(DisagreementError):
        compare(COMPARISON, machine.ask, 1)
    loose = replace(COMPARISON, adds_columns=True)
    if fails:
        with pytest.raises(DisagreementError):
            compare(loose, machine.ask, 1)
    else:
        assert compare(loose, machine.ask, 1).arms.keys() == {"A", "B"}


def test_arrow_rows_become_the_tensors_of_the_loader() -> None:
    rows = pa.table({"x": [1, 2, 3], "l": pa.array([[7], None, [8, 9]], pa.large_list(pa.int64()))})
    found = {name: tensor.tolist() for name, tensor in to_batch(rows.slice(1)).items()}
    assert found == {"x": [2, 3], "l.offsets": [0, 0, 2], "l.values": [8, 9]}
