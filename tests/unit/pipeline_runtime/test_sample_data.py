"""The sample data: its layout, that it is the same everywhere, and that it can be learned from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from logistic import BoolArray, FloatArray, fit_logistic, measure_auc, share_topics

from pipeline_runtime.errors import SourceError
from pipeline_runtime.sample_data import SampleDataOptions, write_sample_data
from pipeline_runtime.sample_data.arrow_tables import (
    LIST_COLUMNS,
    ROW_NULL_SHARES,
    USER_NULL_SHARES,
    build_schema,
)
from pipeline_runtime.sample_data.population import (
    Action,
    build_histories,
    build_population,
)

# More than a chunk (4,096 rows) a day; groups and files that do not end where chunks do.
SMALL = SampleDataOptions(rows=10_007, days=2, rows_per_file=2_000, rows_per_group=600)
USER_COLUMNS = (
    *("user_id", "user_country", "user_age_days", "device", *LIST_COLUMNS),
    *(f"dense_{index:02d}" for index in range(6)),
)
LAST_DAY = "2026-01-08"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("large")
    write_sample_data(directory, SampleDataOptions(rows=80_000))
    return directory


@pytest.fixture(scope="module")
def log(large: Path) -> pa.Table:
    return _read(large)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small")
    write_sample_data(directory, SMALL)
    return directory


def _read(directory: Path) -> pa.Table:
    """All rows, in the order of days and files."""
    return ds.dataset(directory / "impressions", partitioning="hive").to_table()


def _hash_files(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*.parquet"))
    }


def _get_sequence_lengths(log: pa.Table, column: str) -> FloatArray:
    return np.asarray(pc.list_value_length(log[column]))


def _get_spam_ids(directory: Path) -> npt.NDArray[np.int64]:
    return np.asarray(pq.read_table(directory / "spam_users" / "part-00000.parquet")["user_id"])


def test_the_same_options_give_the_same_bytes(tmp_path: Path, small: Path) -> None:
    write_sample_data(tmp_path, SMALL)
    assert _hash_files(tmp_path) == _hash_files(small)


def test_another_seed_gives_other_rows(tmp_path: Path, small: Path) -> None:
    write_sample_data(tmp_path, replace(SMALL, seed=18))
    assert not _read(tmp_path)["user_id"].equals(_read(small)["user_id"])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"rows_per_file": 700}, id="smaller files"),
        pytest.param({"rows_per_file": 5_004, "rows_per_group": 1_251}, id="larger files"),
        pytest.param({"compression": "snappy"}, id="another codec"),
    ],
)
def test_rows_do_not_depend_on_the_files(
    tmp_path: Path, small: Path, other: dict[str, int | str]
) -> None:
    write_sample_data(tmp_path, replace(SMALL, **other))  # type: ignore[arg-type]
    assert _read(tmp_path).equals(_read(small))


@pytest.mark.parametrize("rows", [1, 2, 4_095, 4_096, 4_097, 10_007])  # a chunk has 4,096
def test_row_count_is_exact(tmp_path: Path, rows: int) -> None:
    summary = write_sample_data(tmp_path, replace(SMALL, rows=rows))
    log = _read(tmp_path)
    assert summary.rows == log.num_rows == rows
    assert log["_lastmile_row_id"].to_pylist() == list(range(rows))


def test_every_file_has_several_row_groups_and_one_day(large: Path, small: Path) -> None:
    for directory, days in ((large, 8), (small, 2)):
        files = sorted((directory / "impressions").rglob("*.parquet"))
        assert len({path.parent.name for path in files}) == days
        assert all(pq.read_metadata(path).num_row_groups >= 2 for path in files)


def test_no_file_or_group_is_larger_than_asked(small: Path) -> None:
    for path in (small / "impressions").rglob("*.parquet"):
        metadata = pq.read_metadata(path)
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        assert metadata.num_rows <= SMALL.rows_per_file
        assert max(sizes) <= SMALL.rows_per_group


def test_columns_are_those_of_the_schema(log: pa.Table) -> None:
    assert log.schema.names == [*build_schema().names, "day"]
    assert [log.schema.field(field.name).type for field in build_schema()] == build_schema().types


def test_timestamps_lie_on_their_day_in_the_order_of_requests(log: pa.Table) -> None:
    assert pc.strftime(log["timestamp"], "%Y-%m-%d").equals(log["day"].cast(pa.string()))
    first = log.filter(pc.equal(log["position"], 0))["timestamp"]
    gaps_seconds = np.diff(np.asarray(first).astype(np.int64)) / 1e6
    assert gaps_seconds.min() > -3  # an impression is seen up to 3 s after its place was filled


def test_rows_of_a_request_share_the_user_columns(small: Path) -> None:
    log = _read(small).slice(3_000, 2_000)  # a chunk ends in between
    seen: dict[int, dict[str, object]] = {}
    for row in log.select(["request_id", *USER_COLUMNS]).to_pylist():
        assert seen.setdefault(row["request_id"], row) == row


def test_requests_are_contiguous_with_1_to_40_positions(log: pa.Table) -> None:
    ids = np.asarray(log["request_id"])
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    sizes = np.diff(np.append(starts, len(ids)))
    assert len(starts) == len(np.unique(ids))
    assert sizes.min() >= 1
    assert sizes.max() == 40
    assert 18 < sizes.mean() < 22
    expected = np.arange(len(ids)) - np.repeat(starts, sizes)
    assert np.array_equal(np.asarray(log["position"]), expected)


def test_sequences_are_aligned_and_100_to_200_long(log: pa.Table) -> None:
    items, actions = (_get_sequence_lengths(log, column) for column in LIST_COLUMNS)
    assert (items.min(), items.max()) == (100, 200)
    assert np.array_equal(items, actions)
    assert set(pc.unique(pc.list_flatten(log["user_sequence_actions"])).to_pylist()) == set(Action)


def test_a_later_history_of_a_user_continues_the_earlier() -> None:
    population = build_population(17)
    histories = build_histories(population, np.array([5, 5]), np.array([1.0, 1.5]))
    bounds = histories.offsets
    earlier, later = (histories.item_ids_E[bounds[i] : bounds[i + 1]] for i in (0, 1))
    num_new = int(1.5 * population.events_per_day_U[5]) - int(population.events_per_day_U[5])
    assert num_new > 0
    assert np.array_equal(later[num_new:], earlier[:-num_new])


@pytest.mark.parametrize(("column", "share"), {**USER_NULL_SHARES, **ROW_NULL_SHARES}.items())
def test_nulls_have_their_share(log: pa.Table, column: str, share: float) -> None:
    measured = log[column].null_count / log.num_rows
    assert share / 2 < measured < share * 2  # user columns: few users, so a wide margin


def test_spam_users_are_listed_and_have_5_percent_of_the_rows(large: Path, log: pa.Table) -> None:
    spam = pq.read_table(large / "spam_users" / "part-00000.parquet")
    assert spam.schema.names == ["user_id", "reason"]
    assert len(set(spam["user_id"].to_pylist())) == spam.num_rows == 4_000
    assert spam["reason"].null_count == 0
    share = np.isin(np.asarray(log["user_id"]), _get_spam_ids(large)).mean()
    assert 0.04 < share < 0.06


def test_labels_have_their_rates(log: pa.Table) -> None:
    clicked = np.asarray(log["clicked"])
    saved = np.asarray(pc.fill_null(log["saves"], 0)) > 0
    assert 0.05 < clicked.mean() < 0.08
    assert saved[clicked].mean() > 10 * saved[~clicked].mean() > 0
    assert np.array_equal(np.asarray(pc.is_valid(log["dwell_seconds"])), clicked)
    assert not np.any(np.asarray(pc.is_valid(log["conversion_delay_hours"])) & ~clicked)
    assert log["conversion_delay_hours"].null_count < log.num_rows


def test_floats_hold_no_nan(log: pa.Table) -> None:
    floats = [field.name for field in log.schema if pa.types.is_floating(field.type)]
    assert not any(pc.any(pc.is_nan(log[name])).as_py() for name in floats)


def _build_features(log: pa.Table) -> FloatArray:
    dense = [np.asarray(pc.fill_null(log[f"dense_{i:02d}"], 0.0)) for i in range(20)]
    position = np.log1p(np.asarray(log["position"]).astype(np.float64))
    columns = [
        np.ones(log.num_rows),
        position,
        *dense,
        10 * share_topics(log["user_sequence"], log["item_id"]),
    ]
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


@pytest.fixture(scope="module")
def fit_input(large: Path, log: pa.Table) -> tuple[FloatArray, BoolArray, BoolArray]:
    spam = np.isin(np.asarray(log["user_id"]), _get_spam_ids(large))
    genuine = log.filter(pa.array(~spam))
    is_last_day = np.asarray(pc.equal(genuine["day"].cast(pa.string()), LAST_DAY))
    return _build_features(genuine), np.asarray(genuine["clicked"]), is_last_day


def test_a_linear_model_learns_the_last_day_from_the_others(
    fit_input: tuple[FloatArray, BoolArray, BoolArray],
) -> None:
    features, clicked, last = fit_input
    weights = fit_logistic(features[~last], clicked[~last])
    assert measure_auc(clicked[last], features[last] @ weights) > 0.72


def test_the_history_is_worth_more_than_a_point_of_auc(
    fit_input: tuple[FloatArray, BoolArray, BoolArray],
) -> None:
    features, clicked, last = fit_input
    aucs = []
    for used in (features, features[:, :-1]):
        weights = fit_logistic(used[~last], clicked[~last])
        aucs.append(measure_auc(clicked[last], used[last] @ weights))
    assert aucs[0] > aucs[1] + 0.01


def test_a_second_call_writes_nothing(small: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in small.rglob("*")}
    progress: list[int] = []
    summary = write_sample_data(small, SMALL, progress.append)
    assert summary.was_current
    assert progress == [SMALL.rows]
    assert {path: path.stat().st_mtime_ns for path in small.rglob("*")} == before


def test_other_options_replace_all_files(tmp_path: Path) -> None:
    write_sample_data(tmp_path, replace(SMALL, rows=1_000, days=5))
    summary = write_sample_data(tmp_path, replace(SMALL, rows=1_000, days=2))
    assert not summary.was_current
    assert len(list((tmp_path / "impressions").iterdir())) == 2
    assert _read(tmp_path).num_rows == 1_000


def _remove_a_file(directory: Path) -> None:
    next((directory / "impressions").rglob("*.parquet")).unlink()


def _cut_a_file(directory: Path) -> None:
    path = next((directory / "impressions").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:100])


def _forget_the_version(directory: Path) -> None:
    path = directory / "_lastmile_sample.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 0}))


@pytest.mark.parametrize("damage", [_remove_a_file, _cut_a_file, _forget_the_version])
def test_damaged_data_is_written_again(tmp_path: Path, damage: object) -> None:
    options = replace(SMALL, rows=1_000)
    write_sample_data(tmp_path, options)
    before = _hash_files(tmp_path)
    assert callable(damage)
    damage(tmp_path)
    assert not write_sample_data(tmp_path, options).was_current
    assert _hash_files(tmp_path) == before


def test_an_interrupted_write_is_finished_by_the_next_call(tmp_path: Path) -> None:
    def stop_after(rows: int) -> None:
        if rows > SMALL.rows // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sample_data(tmp_path, SMALL, stop_after)
    assert not write_sample_data(tmp_path, SMALL).was_current
    assert not list(tmp_path.rglob("*.tmp"))
    assert _read(tmp_path).num_rows == SMALL.rows


@pytest.mark.parametrize("name", ["impressions/part-00000.parquet", "spam_users/mine.csv"])
def test_data_of_somebody_else_is_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(SourceError, match=re.escape(str(tmp_path))):
        write_sample_data(tmp_path, SMALL)
    assert path.read_text() == "precious"


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "sample-data.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert _read(tmp_path / "build" / "sample").num_rows == 10_000


def test_progress_rises_to_the_row_count(tmp_path: Path) -> None:
    progress: list[int] = []
    summary = write_sample_data(tmp_path, SMALL, progress.append)
    files = _iter_parquet(tmp_path)
    assert progress == sorted(set(progress))
    assert progress[-1] == SMALL.rows
    assert summary.file_bytes == sum(path.stat().st_size for path in files)


def _iter_parquet(directory: Path) -> Iterator[Path]:
    return directory.rglob("*.parquet")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", 0),
        ("rows", 100_000_001),
        ("rows", 1.5),
        ("seed", -1),
        ("days", 0),
        ("days", 367),
        ("rows_per_file", 0),
        ("rows_per_group", 0),
        ("rows_per_group", True),
        ("compression", "brotli9"),
    ],
)
def test_an_option_out_of_bounds_is_named_with_its_value(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: .*{value!r}"):
        SampleDataOptions(**{field: value})  # type: ignore[arg-type]
