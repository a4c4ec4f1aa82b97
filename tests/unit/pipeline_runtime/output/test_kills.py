"""A run that is killed between any two changes of its store, and resumed, writes the same table."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from failing_store import store_in_memory
from written_tables import Killed, KillingStorage, Written, plan_table, staged_names

from pipeline_runtime.output import storage as storage_module
from pipeline_runtime.output.place import Place
from pipeline_runtime.plan import StreamPlan
from pipeline_runtime.sources import open_location
from pipeline_runtime.sources.output_manifest import read_output_manifest
from pipeline_runtime.sources.parquet.listing import find_files
from pipeline_runtime.sources.partition_names import NULL_NAME

ROWS = pa.table({"id": range(12), "day": ["c/d", None] * 6, "old": [False] * 12})
OLD = pa.table({"id": [100, 101], "day": ["a", "z"], "old": [True, True]})


@pytest.fixture(params=["local", "store"])
def uri(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.setenv("LASTMILE_STORAGE_SCHEMES", "away")
    with store_in_memory():
        yield "away://lake/out" if request.param == "store" else str(tmp_path / "out")


@pytest.fixture
def source(tmp_path: Path) -> StreamPlan:
    return plan_table(tmp_path / "source.parquet", ROWS, 7)


@pytest.fixture
def old(tmp_path: Path) -> StreamPlan:
    return plan_table(tmp_path / "old.parquet", OLD)


def rows_of(uri: str) -> list[tuple[int, str | None]]:
    """Return the rows as a reader finds them that follows the list of files."""
    place = open_location(uri)
    rows = []
    for path in find_files(place).paths:
        with place.filesystem.open_input_file(path) as file:
            folder = path.rsplit("/", 2)[1].removeprefix("day=")
            day = None if folder == NULL_NAME else unquote(folder)
            rows += [(number, day) for number in pq.read_table(file)["id"].to_pylist()]
    return sorted(rows)


EXPECTED = sorted(zip(ROWS["id"].to_pylist(), ROWS["day"].to_pylist(), strict=True))
EXPECTED_OLD = [(100, "a"), (101, "z")]


def settings_of(uri: str, stream: StreamPlan, **settings: object) -> Written:
    return Written(
        stream=stream,
        uri=uri,
        partition_by=("day",),
        chunk_rows=7,
        storage=KillingStorage,
        **settings,  # type: ignore[arg-type]
    )


def check_half_done(place: Place, uri: str, *, has_old: bool) -> None:
    """Whatever happened, a reader finds no table, the old one, or the new one."""
    manifest = read_output_manifest(place.table.location)
    if manifest is None:
        assert not has_old or place.table.is_local  # two renames leave a moment without a table
        return
    expected = EXPECTED_OLD if manifest.run.startswith("2025") else EXPECTED
    assert rows_of(uri) == expected


def clear(settings: Written) -> None:
    place = settings.place()
    place.table.remove()
    place.staging.remove()


def write_old(uri: str, old: StreamPlan) -> None:
    Written(
        stream=old, uri=uri, partition_by=("day",), run="20250101T000000Z-0000000000000000"
    ).write()


def is_killed(settings: Written, at: int, *, after: bool, resume: bool = False) -> bool:
    """Run, and return whether the run was killed before its end."""
    with KillingStorage.killing(at, after=after):
        try:
            settings.write(resume=resume)
        except Killed:
            return True
    return False


@pytest.mark.parametrize("first", [0, 1])  # every other kill: the limit of time is one test's
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("mode", ["Fail", "Overwrite"])
def test_a_kill_anywhere_costs_no_row(
    uri: str, source: StreamPlan, old: StreamPlan, mode: str, after: bool, first: int
) -> None:
    settings = settings_of(uri, source, mode=mode)
    place = settings.place()
    for at in itertools.count(first, 2):
        clear(settings)
        if mode == "Overwrite":
            write_old(uri, old)
        if not is_killed(settings, at, after=after):
            break
        check_half_done(place, uri, has_old=mode == "Overwrite")
        settings.write(resume=True)
        assert rows_of(uri) == EXPECTED
        assert staged_names(place) == []
    assert at > 10


def test_a_kill_anywhere_leaves_a_readable_empty_table(uri: str, tmp_path: Path) -> None:
    settings = settings_of(uri, plan_table(tmp_path / "empty.parquet", ROWS.slice(0, 0)))
    for at in itertools.count():
        clear(settings)
        if not is_killed(settings, at, after=True):
            break
        settings.write(resume=True)
        assert rows_of(uri) == []
        assert staged_names(settings.place()) == []
    assert at > 5


def test_two_renames_replace_a_table_where_no_exchange_is(
    tmp_path: Path, source: StreamPlan, old: StreamPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "exchange", lambda one, other: False)
    uri = str(tmp_path / "out")
    settings = settings_of(uri, source, mode="Overwrite")
    for at in itertools.count(8):
        clear(settings)
        write_old(uri, old)
        if not is_killed(settings, at, after=True):
            break
        settings.write(resume=True)
        assert rows_of(uri) == EXPECTED
    assert any(step.startswith("rename to") for step in KillingStorage.log)


def test_a_second_kill_during_the_resume_costs_no_row(uri: str, source: StreamPlan) -> None:
    settings = settings_of(uri, source)
    for first, second in itertools.product((2, 6, 11), repeat=2):
        clear(settings)
        is_killed(settings, first, after=True, resume=True)
        is_killed(settings, second, after=False, resume=True)
        settings.write(resume=True)
        assert rows_of(uri) == EXPECTED


def test_a_resumed_run_does_no_recorded_work_again(tmp_path: Path, source: StreamPlan) -> None:
    settings = settings_of(str(tmp_path / "out"), source)
    assert is_killed(settings, 3, after=True)
    recorded = [name for name in staged_names(settings.place()) if "/pieces/" in name]
    assert not is_killed(settings, -1, after=True, resume=True)
    spooled = [step for step in KillingStorage.log if step.startswith("create 0")]
    assert len(recorded) == 1
    assert len(spooled) == 2 - len(recorded)


def test_a_run_that_is_given_up_leaves_nothing(uri: str, source: StreamPlan) -> None:
    settings = settings_of(uri, source)
    for at in itertools.count(0, 3):
        clear(settings)
        if not is_killed(settings, at, after=True):
            break
        if read_output_manifest(settings.place().table.location) is None:
            settings.write()
            assert rows_of(uri) == EXPECTED
            assert staged_names(settings.place()) == []


def test_a_run_given_up_after_its_commit_leaves_no_replaced_file(
    uri: str, source: StreamPlan, old: StreamPlan
) -> None:
    settings = settings_of(uri, source, mode="Overwrite")
    place = settings.place()
    for at in itertools.count(12, 2):  # from the commit on
        clear(settings)
        write_old(uri, old)
        if not is_killed(settings, at, after=True):
            break
        manifest = read_output_manifest(place.table.location)
        if manifest is not None and manifest.run == settings.run:
            settings.write()
            manifest = read_output_manifest(place.table.location)
            assert manifest is not None
            listed = {file.path for file in manifest.files}
            assert {name for name in place.table.sizes() if name.endswith(".parquet")} == listed
