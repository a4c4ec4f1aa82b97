"""The harness of the benchmarks: rounds, agreement, bounds, results, page and picture."""

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.cells import Cell
from benchmarks.harness.children import Child, environment_of
from benchmarks.harness.errors import BenchmarkError, DisagreementError
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target, build_page, cells_of, judge
from benchmarks.harness.rounds import Arm, Rounds, Sample, in_order_of, measure
from benchmarks.harness.statistics import estimate, estimate_ratio

METRIC = Metric(name="rate", label="rows/s")
BENCHMARK = Benchmark(
    name="some",
    module="some.module",
    title="A benchmark",
    text="What it compares.",
    metrics=(METRIC,),
    targets=(Target(text="rate, at least 0.97", metric="rate", at_least=0.97),),
)


@dataclass
class Machine:
    """Arms whose values are known, and the order in which they ran."""

    values: dict[str, list[float]]
    checksums: dict[str, int] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)

    def arm(self, name: str) -> Arm:
        """Return an arm that takes its values one after another, again from the first at the
        end."""

        def run() -> Sample:
            values = self.values[name]
            value = values[self.ran.count(name) % len(values)]
            self.ran.append(name)
            return Sample({"rate": value}, self.checksums.get(name, 1))

        return run

    def measure(self, rounds: Rounds) -> Cell:
        """Measure all arms."""
        return measure("cell", {name: self.arm(name) for name in self.values}, rounds)


@given(st.lists(st.integers(), min_size=1, unique=True), st.integers(0, 50))
def test_each_arm_is_in_every_round_once(items: list[int], index: int) -> None:
    assert sorted(in_order_of(items, index)) == sorted(items)


def test_the_seed_fixes_the_order_and_arms_alternate() -> None:
    orders = [in_order_of("abc", index) for index in range(50)]
    assert orders == [in_order_of("abc", index) for index in range(50)]
    assert {order[0] for order in orders} == set("abc")


def test_warmups_do_not_count() -> None:
    machine = Machine({"old": [9.0, 1.0, 1.0], "new": [9.0, 2.0, 2.0]})
    cell = machine.measure(Rounds(count=2, warmups=1))
    assert cell.arms == {"old": {"rate": [1.0, 1.0]}, "new": {"rate": [2.0, 2.0]}}
    assert cell.ratio("new", "rate") == estimate([2.0, 2.0])


def test_arms_with_different_output_are_refused() -> None:
    machine = Machine({"old": [1.0], "new": [1.0]}, checksums={"new": 2})
    with pytest.raises(DisagreementError, match="new"):
        machine.measure(Rounds(count=1))


def test_rounds_of_a_restless_machine_are_set_aside() -> None:
    machine = Machine({"floor": [1.0, 1.3, 1.0, 1.0], "new": [2.0, 1.0, 2.0, 2.0]})
    rounds = Rounds(count=3, max_count=6, warmups=0, calibration=("rate", ["floor"]))
    cell = machine.measure(rounds)
    assert cell.arms["new"]["rate"] == [2.0, 2.0, 2.0]
    assert cell.facts["setAside"] == 1


def test_bounds_hold_the_ratio_and_narrow_with_rounds() -> None:
    few, many = estimate([0.9, 1.1] * 2), estimate([0.9, 1.1] * 20)
    assert few.low is not None
    assert few.high is not None
    assert few.low < few.median < few.high
    assert many.low is not None
    assert few.low < many.low
    assert estimate([2.0]).low is None
    assert estimate_ratio([2.0, 4.0], [1.0, 2.0]).median == pytest.approx(2.0)


def measure_two(options: Namespace) -> Iterator[Cell]:
    """Measure two cells, the second of which misses its target."""
    for name, value in (("equal", 1.0), ("slow", 0.9)):
        machine = Machine({"old": [1.0], "new": [value]})
        arms = {arm: machine.arm(arm) for arm in machine.values}
        yield measure(name, arms, Rounds(count=options.rounds))


def test_a_program_writes_results_page_and_picture(tmp_path: Path) -> None:
    parser = build_parser("some", None, rounds=3)
    arguments = ["--rounds", "2", "--output", str(tmp_path), "--name", "tiny"]
    assert run(BENCHMARK, parser, measure_two, arguments) == 0
    results = json.loads((tmp_path / "some-tiny.json").read_text())
    assert [row["met"] for row in judge(BENCHMARK, results)] == [True, False]
    assert cells_of(results)[1].arms == {"old": {"rate": [1, 1]}, "new": {"rate": [0.9, 0.9]}}
    page = (tmp_path / "some-tiny.md").read_text()
    assert "| slow | new | 0.900 | 0.900 |" in page
    assert "<svg" in (tmp_path / "some-tiny.svg").read_text()
    assert "- Run 1: Made by" in build_page(BENCHMARK, results | {"runs": [results] * 2})
    assert run(BENCHMARK, parser, measure_two, arguments, fails_if_missed=True) == 1


def test_a_benchmark_that_fails_writes_nothing(tmp_path: Path) -> None:
    def fail(_: Namespace) -> Iterator[Cell]:
        raise BenchmarkError("no rows")

    arguments = ["--output", str(tmp_path / "results")]
    assert run(BENCHMARK, build_parser("some", None), fail, arguments) == 1
    assert not (tmp_path / "results").exists()


def test_ratios_of_earlier_results_are_kept() -> None:
    cell = Cell(
        name="cell",
        base="old",
        arms={"old": {"rate": [1.0, 2.0, 3.0]}, "new": {"rate": [2.0, 4.0, 5.0]}},
        ratios={"new": {"rate": [1.8, 1.5, None]}},
    )
    again = Cell.from_json(json.loads(json.dumps(cell.to_json())))
    assert again == cell
    found = again.ratio("new", "rate")
    assert found is not None
    assert (found.median, found.low, found.high) == (1.8, 1.5, None)


CHILD = """
from benchmarks.harness.serving import serve
def answer(request):
    print("not an answer")
    return request["a"] + 1
serve(lambda: ("hello", answer))
"""


def test_a_child_answers_requests_and_reports_failures(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    root = Path(__file__).parents[3]
    with Child("child", [str(script)], environment_of(root)) as child:
        assert child.hello == "hello"
        assert child.ask({"a": 1}) == 2
        with pytest.raises(BenchmarkError, match="KeyError"):
            child.ask({"b": 1})
