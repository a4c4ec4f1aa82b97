"""Comparisons of stored runs: the choice of runs, differences, verdicts, and the three outputs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_runs import StoredRun, rewrite_start, write_stored_run
from typer.testing import CliRunner

from pipeline_runtime.cli import app
from pipeline_runtime.comparison.comparing import compare
from pipeline_runtime.comparison.gathering import gather
from pipeline_runtime.comparison.model import ComparedMetric, Comparison
from pipeline_runtime.errors import LastmileError

BASE = StoredRun()
BETTER = StoredRun(name="better", quality=1.3, keep_percent=50)
SAME = StoredRun(name="same", salt=1)
SEEDS = 3


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def write_repeats(root: Path, run: StoredRun, num_seeds: int = SEEDS) -> None:
    for seed in range(num_seeds):
        write_stored_run(root, replace(run, seed=seed, start=run.start + seed))


def compare_all(root: Path, *names: str, only: bool = False) -> Comparison:
    return compare(gather(names, str(root), only_named=only))


def find(comparison: Comparison, name: str) -> ComparedMetric:
    return next(m for m in comparison.metrics if m.name == name and m.on_shared_rows)


@pytest.mark.parametrize(
    ("others", "seeds", "verdicts"),
    [
        pytest.param([BETTER], 3, ["Better"], id="better"),
        pytest.param([SAME], 3, ["Inconclusive"], id="same"),
        pytest.param([BETTER], 2, ["Inconclusive"], id="two-seeds"),
        pytest.param([BETTER], 1, ["Inconclusive"], id="one-seed"),
        pytest.param([BETTER, SAME], 3, ["Better", "Inconclusive"], id="three-variants"),
        pytest.param([StoredRun(name="copy")], 3, ["Equal"], id="equal-predictions"),
        pytest.param([StoredRun(name="copy")], 1, ["Equal"], id="equal-predictions-of-one-seed"),
    ],
)
def test_verdict_needs_enough_seeds_and_a_difference(
    root: Path, others: list[StoredRun], seeds: int, verdicts: list[str]
) -> None:
    for run in (BASE, *others):
        write_repeats(root, run, seeds)
    found = compare_all(root, "clicks", *(run.name for run in others))
    assert [each.verdict for each in find(found, "auc").differences] == verdicts
    assert [each.seeds for each in find(found, "auc").differences] == [seeds] * len(others)
    assert len(found.verdicts) == len(others)


@pytest.mark.parametrize(
    ("column", "verdicts"),
    [
        # Half of each prediction ranks the rows alike, so the AUC is the same in every draw.
        pytest.param("prediction", ["Inconclusive", "Inconclusive"], id="other-predictions"),
        pytest.param("loss", ["Equal", "Better"], id="other-losses"),
    ],
)
@pytest.mark.parametrize("seeds", [1, SEEDS])
def test_equal_needs_equal_predictions(
    root: Path, column: str, verdicts: list[str], seeds: int
) -> None:
    copy = StoredRun(name="copy")
    for run in (BASE, copy):
        write_repeats(root, run, seeds)
    for path in root.glob("copy/*/evaluation.parquet"):
        values = pq.read_table(path)[column].to_numpy()
        rewrite(path.parent, {column: (values / 2).tolist()})
    found = compare_all(root, "clicks", "copy")
    if seeds < SEEDS:
        verdicts = [each.replace("Better", "Inconclusive") for each in verdicts]
    assert [find(found, name).differences[0].verdict for name in ("auc", "loss")] == verdicts
    assert find(found, "auc").differences[0].value == 0


def test_worse_variant_has_a_higher_loss(root: Path) -> None:
    for run in (BASE, BETTER):
        write_repeats(root, run)
    found = compare_all(root, "better", "clicks")
    assert find(found, "auc").differences[0].verdict == "Worse"
    assert find(found, "loss").differences[0].value > 0
    assert find(found, "loss").differences[0].verdict == "Worse"


def test_one_seed_has_a_bound_and_no_interval(root: Path) -> None:
    for run in (BASE, BETTER):
        write_stored_run(root, run)
    [difference] = find(compare_all(root, "clicks", "better"), "auc").differences
    assert (difference.low, difference.high) == (None, None)
    assert 0 < difference.detectable < 0.01


def test_more_variants_make_intervals_wider(root: Path) -> None:
    for run in (BASE, BETTER, SAME):
        write_repeats(root, run)
    [two] = find(compare_all(root, "clicks", "better"), "auc").differences
    three, _ = find(compare_all(root, "clicks", "better", "same"), "auc").differences
    assert three.confidence == pytest.approx(0.975)
    assert three.low is not None
    assert two.low is not None
    assert three.low < two.low


def test_repeats_are_found_by_all_but_the_seed(root: Path) -> None:
    write_repeats(root, BASE)
    for other in (
        StoredRun(start=10, seed=7, keep_percent=50),
        StoredRun(start=11, seed=8, outcome="Failed"),
        StoredRun(start=12, seed=1),  # newer than the other run of this seed
        StoredRun(start=13, seed=9, code_digest="other"),
    ):
        write_stored_run(root, other)
    write_repeats(root, BETTER)
    [variant, _] = gather([f"clicks/{BASE.folder}", "better"], str(root)).variants
    assert [(run.seed, run.listed.name[11:13]) for run in variant.runs] == [
        (0, "00"),
        (1, "12"),
        (2, "02"),
    ]


def test_runs_of_other_code_are_told_apart(root: Path) -> None:
    for run in (BASE, replace(BASE, start=20, code_digest="other")):
        write_stored_run(root, run)
    names = [f"clicks/{StoredRun(start=start).folder}" for start in (0, 20)]
    found = compare_all(root, *names)
    [code] = [fact for fact in found.data if fact.name == "code that trains"]
    assert code.differs
    assert not [each for each in found.warnings if "seed alone" in each]


def test_only_leaves_out_repeats(root: Path) -> None:
    for run in (BASE, BETTER):
        write_repeats(root, run)
    found = compare_all(root, "clicks", "better", only=True)
    assert [len(variant.runs) for variant in found.variants] == [1, 1]


def test_two_repeats_are_compared_alone(root: Path) -> None:
    write_repeats(root, BASE)
    names = [f"clicks/{StoredRun(start=start).folder}" for start in (0, 1)]
    found = compare_all(root, *names)
    assert [[run.seed for run in variant.runs] for variant in found.variants] == [[0], [1]]
    assert found.warnings


def test_differences_are_listed_by_path(root: Path) -> None:
    for run in (BASE, BETTER):
        write_repeats(root, run)
    found = compare_all(root, "clicks", "better")
    assert [(each.path, each.values) for each in found.settings] == [
        ("pipeline[0].downsample.keepPercent", ("10", "50"))
    ]
    assert not any(fact.differs for fact in found.data)
    steps = [step for step in found.steps if step.stream == "Training"]
    assert [step.kind for step in steps][:2] == ["read", "antiJoin"]
    assert steps[0].rows[0] == steps[0].rows[1]


def test_differing_evaluation_rows_are_a_warning(root: Path) -> None:
    write_repeats(root, BASE)
    write_repeats(root, StoredRun(name="moved", quality=1.3, rows=range(1000, 4000)))
    found = compare_all(root, "clicks", "moved")
    assert found.shared_rows is not None
    assert (found.shared_rows.rows, found.shared_rows.groups) == (2000, 400)
    assert find(found, "auc").differences[0].verdict == "Better"
    assert any("2,000" in warning for warning in found.warnings)


def rewrite(folder: Path, change: dict[str, list[float]]) -> None:
    path = folder / "evaluation.parquet"
    table = pq.read_table(path)
    for name, values in change.items():
        index = table.schema.get_field_index(name)
        kept = table[name].to_pylist()[len(values) :]
        array = pa.array([*values, *kept], table.schema.field(name).type)
        table = table.set_column(index, table.schema.field(name), array)
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("change", "num_shared"),
    [
        pytest.param({"label": [1.0] * 9}, None, id="other-labels"),
        pytest.param({"row": list(range(10**6, 10**6 + 3000))}, None, id="no-row-in-common"),
        pytest.param({"row": [7.0] * 10}, 2990, id="repeated-rows"),
        pytest.param({"weight": [2.0] * 10}, 3000, id="other-weights"),
        pytest.param({"group": [1.0] * 3000}, 3000, id="other-groups"),
    ],
)
def test_rows_that_do_not_match_are_not_judged(
    root: Path, change: dict[str, list[float]], num_shared: int | None
) -> None:
    for run in (BASE, BETTER):
        write_stored_run(root, run)
    rewrite(root / "better" / BETTER.folder, change)
    found = compare_all(root, "clicks", "better")
    assert (found.shared_rows and found.shared_rows.rows) == num_shared


def test_run_without_evaluation_rows_has_no_verdict(root: Path) -> None:
    write_stored_run(root, BASE)
    write_stored_run(root, BETTER, is_whole=False)
    found = compare_all(root, "clicks", "better")
    assert found.shared_rows is None
    assert not any(metric.on_shared_rows for metric in found.metrics)
    assert "evaluation.parquet" in found.verdicts[0]


def test_unended_run_is_refused(root: Path) -> None:
    write_stored_run(root, BASE)
    (write_stored_run(root, BETTER) / "summary.json").unlink()
    with pytest.raises(LastmileError, match=r"summary\.json"):
        compare_all(root, "clicks", "better")


def test_run_is_not_compared_with_itself(root: Path) -> None:
    write_stored_run(root, BASE)
    with pytest.raises(LastmileError, match="another run"):
        compare_all(root, "clicks", f"clicks/{BASE.folder}")


def test_runs_of_one_name_in_two_places_are_compared(root: Path) -> None:
    names = [str(write_stored_run(root / place, BASE)) for place in ("desk", "laptop")]
    rewrite_start(Path(names[1]))
    assert len(compare_all(root, *names, only=True).variants) == 2


def test_command_prints_json_and_writes_a_page(root: Path) -> None:
    for run in (BASE, BETTER):
        write_repeats(root, run)
    page = root / "pages" / "compare.html"
    names = [str(root / "clicks"), str(root / "better")]
    command = ["compare", *names, "--html", str(page), "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert json.loads(result.output)["verdicts"]
    text = page.read_text()
    assert text.count("<svg") == 2 + 3  # intervals of auc and loss, and three curves
    assert "://" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", text)
    assert Comparison.model_validate(json.loads(result.output)).variants[1].label == "B"


def test_command_prints_the_verdict_first(root: Path) -> None:
    for run in (BASE, BETTER):
        write_repeats(root, run)
    command = ["compare", "clicks", "better", "--root", str(root)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.output.startswith("B is better than A: auc +")
    assert re.search(r"downsample\.keepPercent +10 +50", result.output)


def test_command_needs_two_runs(root: Path) -> None:
    assert CliRunner().invoke(app, ["compare", "clicks"]).exit_code == 2
