"""The order of the programs, the agreement of their rows, and the judgement of targets."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.dataloading.errors import DisagreementError
from benchmarks.iceberg.child import Epoch, to_batch
from benchmarks.iceberg.lakes import Lake
from benchmarks.iceberg.report import build_markdown, summarise
from benchmarks.iceberg.rounds import NotRunError, measure
from benchmarks.iceberg.targets import Program, Target

A, B, C = (Program(name, f"peers:{name}") for name in "ABC")
LAKE = Lake(Path("lake"))


@dataclass
class Machine:
    """Gives epochs of known seconds and sums, and notes which programs were asked for."""

    seconds: dict[Program, float] = field(default_factory=dict)
    sums: dict[Program, dict[str, int]] = field(default_factory=dict)
    missing: tuple[Program, ...] = ()
    taken: list[Program] = field(default_factory=list)

    def run(self, program: Program, lake: Lake, *, proves: bool, is_fresh: bool) -> Epoch:
        """See Runs."""
        if program in self.missing:
            raise NotRunError("no such package")
        if not proves:
            self.taken.append(program)
        noise = 1.02 if program == B and self.taken.count(B) % 2 else 1.0
        return Epoch(
            seconds=self.seconds.get(program, 1.0) * noise,
            sums={"rows": 10} | self.sums.get(program, {}),
            peak_bytes=100,
            arrow_peak_bytes=100,
            read_bytes=100,
        )


def summary(machine: Machine, *targets: Target, rounds: int = 4) -> list[dict[str, Any]]:
    found = measure(targets, {False: LAKE, True: LAKE}, machine, rounds)
    return summarise(targets, found, LAKE)[:-1]


def test_programs_take_turns_and_another_is_first_each_round() -> None:
    machine = Machine()
    targets = [Target(subject=A, peer=peer, at_least=None) for peer in (B, C)]
    summary(machine, *targets, rounds=2)
    assert machine.taken == [A, B, C, B, C, A]


@pytest.mark.parametrize(
    ("seconds", "is_met"),
    [pytest.param(1.3, True, id="above"), pytest.param(1.2, False, id="bound below")],
)
def test_the_lower_bound_decides(seconds: float, is_met: bool) -> None:
    [row] = summary(Machine(seconds={B: seconds}), Target(subject=A, peer=B, at_least=1.2))
    assert row["is_met"] is is_met
    assert row["ratio_median"] == pytest.approx(seconds, rel=0.02)


def test_a_peer_that_is_not_installed_leaves_the_others() -> None:
    targets = [Target(subject=A, peer=peer, at_least=1.0) for peer in (B, C)]
    missing, other = summary(Machine(missing=(B,)), *targets)
    assert "no such package" in missing["not_run"]
    assert other["rounds"] == 4


@pytest.mark.parametrize(("column", "fails"), [("rows", True), ("item_id", False)])
def test_other_rows_are_not_compared(column: str, fails: bool) -> None:
    """A stream without the join has other columns, but must have the same rows."""
    machine = Machine(sums={A: {"identities": 1, "identities squared": 1, "item_id": 3}})
    machine.sums[B] = machine.sums[A] | {column: 5}
    loose = Target(subject=A, peer=B, at_least=None, is_equal=False)
    strict = Target(subject=A, peer=B, at_least=None)
    with pytest.raises(DisagreementError):
        summary(machine, strict)
    if fails:
        with pytest.raises(DisagreementError):
            summary(machine, loose)
    else:
        summary(machine, loose)


def test_arrow_rows_become_the_tensors_of_the_loader() -> None:
    rows = pa.table({"x": [1, 2, 3], "l": pa.array([[7], None, [8, 9]], pa.large_list(pa.int64()))})
    found = {name: tensor.tolist() for name, tensor in to_batch(rows.slice(1)).items()}
    assert found == {"x": [2, 3], "l.offsets": [0, 0, 2], "l.values": [8, 9]}


def test_the_page_has_a_line_for_each_target() -> None:
    targets = [Target(subject=A, peer=peer, at_least=1.0) for peer in (B, C)]
    document = {
        "settings": {"rows": 1, "largeRows": 1, "days": 1},
        "machine": {"processor": "x", "cores": 2},
        **dict.fromkeys(("command", "commit", "finishedAt"), "x"),
        "minutes": 1.0,
        "loadAverage": [0, 0],
        "comparisons": summary(Machine(missing=(B,)), *targets),
    }
    lines = build_markdown(document).splitlines()
    assert len([line for line in lines if line.startswith("| A |")]) == 2
