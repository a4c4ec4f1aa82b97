"""Rows by partition, and the names of the folders."""

from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.output.partitions import SplitByFolder
from pipeline_runtime.sources.partition_names import (
    NULL_NAME,
    find_name_fault,
    find_partition_type,
    name_folder,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda text: text != NULL_NAME
)


def parse(kind: pa.DataType, folder: str) -> Any:
    """Return the value that pyarrow's readers find in a folder's name."""
    partitioning = pads.partitioning(pa.schema([("c", kind)]), flavor="hive")
    return pads.get_partition_keys(partitioning.parse(f"{folder}/"))["c"]


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        (None, f"c={NULL_NAME}"),
        ("", "c="),
        ("a/b", "c=a%2Fb"),
        ("..", "c=.."),
        ("50 %", "c=50%20%25"),
        ("a=b", "c=a%3Db"),
        ("ünï 日本", "c=ünï%20日本"),
        ("line\nbreak\x7f", "c=line%0Abreak%7F"),
        (True, "c=true"),
        (-3, "c=-3"),
        (date(2026, 1, 2), "c=2026-01-02"),
    ],
)
def test_names_of_folders(value: Any, folder: str) -> None:
    assert name_folder(["c"], [value]) == folder


@settings(max_examples=examples(200), deadline=None)
@given(TEXTS)
def test_readers_find_every_text(text: str) -> None:
    folder = name_folder(["c"], [text])
    assert "/" not in folder
    assert parse(pa.string(), folder) == text


@pytest.mark.parametrize("value", ["x" * 254, "日" * 90, NULL_NAME])
def test_a_value_without_a_folder_is_refused(value: str) -> None:
    with pytest.raises(OutputRefused, match="partitionBy"):
        name_folder(["c"], [value])


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.large_string(), pa.string()),
        (pa.uint64(), pa.uint64()),
        (pa.date32(), pa.date32()),
        (pa.float64(), None),
        (pa.timestamp("us"), None),
        (pa.list_(pa.int64()), None),
    ],
)
def test_types_of_partition_columns(kind: pa.DataType, found: pa.DataType | None) -> None:
    assert find_partition_type(kind) == found


@pytest.mark.parametrize(("name", "is_fine"), [("day", True), ("_day", False), (".day", False)])
def test_readers_skip_hidden_folders(name: str, is_fine: bool) -> None:
    assert (find_name_fault(name) is None) == is_fine


KEYS = st.lists(
    st.tuples(st.sampled_from([None, "", "a", "b/c"]), st.sampled_from([None, True, False])),
    max_size=40,
)


@settings(max_examples=examples(100), deadline=None)
@given(KEYS, st.booleans())
def test_rows_are_split_once_each_and_in_order(keys: list[tuple[Any, Any]], encoded: bool) -> None:
    text = pa.array([key for key, _ in keys], pa.string())
    table = pa.table(
        {
            "id": pa.array(range(len(keys)), pa.int64()),
            "t": text.dictionary_encode() if encoded else text,
            "b": pa.array([flag for _, flag in keys], pa.bool_()),
        }
    )
    found = {folder: part["id"].to_pylist() for folder, part in SplitByFolder(("t", "b"))(table)}
    expected: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        expected.setdefault(name_folder(["t", "b"], key), []).append(index)
    assert found == expected


def test_rows_of_a_table_without_partitions_stay_together() -> None:
    table = pa.table({"id": [3, 1, 2]})
    assert list(SplitByFolder(())(table)) == [("", table)]
    assert list(SplitByFolder(())(table.slice(0, 0))) == []
