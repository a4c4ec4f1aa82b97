"""The order of the programs, the agreement of their rows, and the judgement of targets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from benchmark_environment import ENVIRONMENT

from benchmarks.dataloading.errors import BenchmarkError, DisagreementError
from benchmarks.iceberg.child import to_batch
from benchmarks.iceberg.lakes import Lake
from benchmarks.iceberg.programs import TIME_A_ROW, Arm, Epoch, Program
from benchmarks.iceberg.report import build_markdown
from benchmarks.iceberg.results import build_row
from benchmarks.iceberg.rounds import Comparison, measure

SIZES = {"rows": 1, "sideRows": 1, "largeRows": 1, "growthRows": 1}
LAKE, LARGER = Lake(Path("lake"), 10), Lake(Path("larger"), 40)
A, B, C = (Arm(Program(name, f"peers:{name}"), LAKE) for name in "ABC")
A_ON_LARGER = Arm(A.program, LARGER)


@dataclass
class Machine:
    """Gives epochs of known seconds and sums, and notes which arms were measured."""

    seconds: dict[Arm, float] = field(default_factory=dict)
    sums: dict[Arm, dict[str, int]] = field(default_factory=dict)
    missing: tuple[Arm, ...] = ()
    taken: list[Arm] = field(default_factory=list)

    def run(self, arm: Arm, *, proves: bool) -> Epoch:
        """See Runs."""
        if arm in self.missing:
            raise BenchmarkError("it failed:\n  no such package")
        if not proves:
            self.taken.append(arm)
        noise = 1.02 if arm == B and self.taken.count(B) % 2 else 1.0
        return Epoch(
            seconds=self.seconds.get(arm, 1.0) * noise,
            rows=arm.lake.rows,
            sums={"rows": 10} | self.sums.get(arm, {}),
            peak_bytes=100,
            arrow_peak_bytes=100,
            read_bytes=100,
        )


def test_programs_take_turns_and_another_is_first_each_round() -> None:
    machine = Machine()
    measure([Comparison(A, peer) for peer in (B, C)], machine, 2)
    assert machine.taken == [A, B, C, B, C, A]


@pytest.mark.parametrize(
    ("seconds", "is_met"),
    [pytest.param(1.3, True, id="above"), pytest.param(1.2, False, id="bound below")],
)
def test_the_lower_bound_decides(seconds: float, is_met: bool) -> None:
    [row] = measure([Comparison(A, B, at_least=1.2)], Machine(seconds={B: seconds}), 4)
    assert row["is_met"] is is_met
    assert row["ratio_median"] == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize(
    ("values", "targets", "is_met"),
    [
        pytest.param([1.0, 1.2], {"at_most": 1.1}, False, id="the upper bound is above"),
        pytest.param([0.9], {"at_most": 1.1}, True, id="one round"),
        pytest.param([0.0, 0.0], {"at_most": 0}, True, id="zeros have no bounds"),
        pytest.param([48.0], {"at_least": 48, "at_most": 48}, True, id="a count"),
        pytest.param([47.0], {"at_least": 48, "at_most": 48}, False, id="a count is less"),
        pytest.param([47.0], {}, None, id="no target"),
    ],
)
def test_targets_are_judged_by_their_bound(
    values: list[float], targets: dict[str, float], is_met: bool | None
) -> None:
    row = build_row(subject="A", peer="B", measure="some", values=values, **targets)
    assert row["is_met"] is is_met


def test_a_peer_that_is_not_installed_leaves_the_others() -> None:
    comparisons = [Comparison(A, peer, at_least=1.0) for peer in (B, C)]
    missing, other = measure(comparisons, Machine(missing=(B,)), 4)
    assert "no such package" in missing["not_run"]
    assert other["rounds"] == 4


@pytest.mark.parametrize(("column", "fails"), [("rows", True), ("item_id", False)])
def test_other_rows_are_not_compared(column: str, fails: bool) -> None:
    """A stream without the join has other columns, but must have the same rows."""
    machine = Machine(sums={A: {"identities": 1, "identities squared": 1, "item_id": 3}})
    machine.sums[B] = machine.sums[A] | {column: 5}
    with pytest.raises(DisagreementError):
        measure([Comparison(A, B)], machine, 1)
    loose = [Comparison(A, B, equal="rows")]
    if fails:
        with pytest.raises(DisagreementError):
            measure(loose, machine, 1)
    else:
        measure(loose, machine, 1)


def test_a_larger_table_is_compared_by_row() -> None:
    comparison = Comparison(A_ON_LARGER, A, measure=TIME_A_ROW, equal="none")
    [row] = measure([comparison], Machine(seconds={A_ON_LARGER: 6.0}), 2)
    assert row["ratio_median"] == pytest.approx(1.5)
    assert "4 ×" in row["subject"]


def test_arrow_rows_become_the_tensors_of_the_loader() -> None:
    rows = pa.table({"x": [1, 2, 3], "l": pa.array([[7], None, [8, 9]], pa.large_list(pa.int64()))})
    found = {name: tensor.tolist() for name, tensor in to_batch(rows.slice(1)).items()}
    assert found == {"x": [2, 3], "l.offsets": [0, 0, 2], "l.values": [8, 9]}


def test_the_page_has_a_line_for_each_comparison() -> None:
    comparisons = [Comparison(A, peer, at_least=1.0) for peer in (B, C)]
    rows = measure(comparisons, Machine(missing=(B,)), 2)
    document: dict[str, Any] = {
        **ENVIRONMENT,
        "cells": [{"name": "some", **ENVIRONMENT, **SIZES}],
        "rows": [{"cell": "some", **row} for row in rows],
    }
    lines = build_markdown(document).splitlines()
    assert len([line for line in lines if line.startswith("| some | A |")]) == 2
