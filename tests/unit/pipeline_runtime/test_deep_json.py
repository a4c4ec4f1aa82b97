"""JSON files of a store or a folder may be nested without end: each reader has one clear error."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.history.closing import EVENTS_FILE, FOLDER, keep_history, parse_payload
from pipeline_runtime.history.reading import open_history
from pipeline_runtime.report import load_summary
from pipeline_runtime.report.files.autoscaler_decisions import parse_decisions
from pipeline_runtime.report.files.summary import SUMMARY_FILE
from pipeline_runtime.sources.parquet.nested import METADATA_KEY, parse_footer

DEEP = "[" * 100_000 + "]" * 100_000
RUN = "0f3c6c1e-1"


def load_report(folder: Path) -> None:
    (folder / SUMMARY_FILE).write_text(DEEP)
    load_summary(folder)


def read_decisions(_: Path) -> None:
    parse_decisions(DEEP)


def write_events(folder: Path) -> None:
    (folder / FOLDER / RUN).mkdir(parents=True)
    (folder / FOLDER / RUN / EVENTS_FILE).write_text(DEEP)


def read_events(folder: Path) -> None:
    write_events(folder)
    open_history(str(folder), RUN).events()


def read_nested(folder: Path) -> None:
    table = pa.table({"a": [1]}).replace_schema_metadata({METADATA_KEY: DEEP})
    pq.write_table(table, folder / "part.parquet")
    parse_footer(pq.read_metadata(folder / "part.parquet"), table.schema, "part.parquet")


@pytest.mark.parametrize("read", [load_report, read_decisions, read_events, read_nested])
def test_deep_json_is_one_clear_error(read: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(LastmileError):
        read(tmp_path)


def test_deep_events_of_before_are_replaced(tmp_path: Path) -> None:
    write_events(tmp_path)
    keep_history(str(tmp_path), RUN, parse_payload('{"version": 1, "status": {}}'))
    assert open_history(str(tmp_path), RUN).events() == []
