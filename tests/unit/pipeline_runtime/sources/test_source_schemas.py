"""Tables whose files store the same columns in different encodings."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.parquet import open_parquet


def put(folder: Path, *columns: pa.Array | pa.ChunkedArray, nullable: bool = True) -> str:
    """Write a file for each version of column `c`, in the order of the arguments."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for index, column in enumerate(columns):
        pq.write_table(pa.table({"c": column}), folder / f"{index}.parquet")
    return str(folder)


def categories(values: list[str | None], index: pa.DataType, **options: Any) -> pa.Array:
    kind = pa.dictionary(index, pa.string(), **options)
    return pa.array(values).dictionary_encode().cast(kind)


FEW, MANY = ["de", "fr", None], [f"c{i}" for i in range(300)]
SETS = [[f"{name}{i}" for i in range(100)] for name in "ab"]
CATEGORIES = {
    "a narrow index and a wide one": (categories(FEW, pa.int8()), categories(MANY, pa.int16())),
    "unsigned and signed": (categories(FEW, pa.uint8()), categories(FEW, pa.int8())),
    "64 bits": (categories(FEW, pa.int8()), categories(MANY, pa.uint32())),
    "more values together than one index has": tuple(categories(s, pa.int8()) for s in SETS),
    "categories and strings": (categories(FEW, pa.int8()), pa.array(MANY)),
    "categories and large strings": (categories(FEW, pa.int8()), pa.array(MANY, pa.large_string())),
    "ordered and not": (categories(FEW, pa.int8(), ordered=True), categories(MANY, pa.int16())),
    "in lists": tuple(
        pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        for values in (categories(FEW, pa.int8()), categories(MANY, pa.int16()))
    ),
    "in structs": tuple(
        pa.StructArray.from_arrays([values], ["x"])
        for values in (categories(FEW, pa.int8()), categories(MANY, pa.int16()))
    ),
}


@pytest.mark.parametrize("arrays", CATEGORIES.values(), ids=CATEGORIES)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_categories_are_read_in_any_order_of_files(
    tmp_path: Path, arrays: tuple[pa.Array, ...], is_reversed: bool
) -> None:
    arrays = arrays[::-1] if is_reversed else arrays
    table = Pipeline.read_parquet(put(tmp_path / "t", *arrays)).to_table("/")
    assert table["c"].to_pylist() == [value for array in arrays for value in array.to_pylist()]
    assert table["c"].combine_chunks().to_pylist() == table["c"].to_pylist()


def required(values: list[Any], kind: pa.DataType) -> pa.Table:
    return pa.table([pa.array(values, kind)], schema=pa.schema([pa.field("c", kind, False)]))


def test_a_column_nullable_in_any_file_is_nullable(tmp_path: Path) -> None:
    put(tmp_path / "t")
    pq.write_table(required([1, 2], pa.int64()), tmp_path / "t/0.parquet")
    pq.write_table(pa.table({"c": pa.array([None, 3], pa.int64())}), tmp_path / "t/1.parquet")
    rows = Pipeline.read_parquet(str(tmp_path / "t"))
    table = rows.to_table("/")
    assert table.schema.field("c").nullable
    assert table["c"].to_pylist() == [1, 2, None, 3]
    assert rows.fill_null({"c": -1}).to_table("/")["c"].to_pylist() == [1, 2, -1, 3]
    joined = Pipeline.read_parquet(str(tmp_path / "t")).join(str(tmp_path / "t"), on="c")
    assert joined.to_table("/").num_rows == 4


def test_a_column_that_is_required_in_all_files_stays_required(tmp_path: Path) -> None:
    put(tmp_path / "t")
    for index in range(2):
        pq.write_table(required([1, 2], pa.int64()), tmp_path / f"t/{index}.parquet")
    table = open_parquet(ParquetSource(uri=str(tmp_path / "t")), "")
    assert not table.schema.field("c").nullable


ELEMENT = pa.field("element", pa.int64(), nullable=False)
NESTED = {
    "items of lists": (pa.list_(ELEMENT), [[1]], [[None], None]),
    "items of fixed lists": (pa.list_(ELEMENT, 1), [[1]], [[None], None]),
    "fields of structs": (pa.struct([ELEMENT]), [{"element": 1}], [{"element": None}]),
    "fields of structs in lists": (
        pa.list_(pa.field("element", pa.struct([ELEMENT]), False)),
        [[{"element": 1}]],
        [[{"element": None}, None]],
    ),
    "values of maps": (
        pa.map_(pa.string(), pa.field("value", pa.int64(), False)),
        [[("a", 1)]],
        [[("a", None)]],
    ),
}


def all_nullable(kind: pa.DataType) -> pa.DataType:
    def field(one: pa.Field) -> pa.Field:
        return pa.field(one.name, all_nullable(one.type))

    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, field(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([field(one) for one in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field(kind.value_field), kind.list_size)
    return pa.list_(field(kind.value_field)) if pa.types.is_list(kind) else kind


@pytest.mark.parametrize(("kind", "first", "second"), NESTED.values(), ids=NESTED)
def test_a_nested_field_nullable_in_any_file_is_nullable(
    tmp_path: Path, kind: pa.DataType, first: list[Any], second: list[Any]
) -> None:
    put(tmp_path / "t")
    pq.write_table(required(first, kind), tmp_path / "t/0.parquet")
    values = pa.array(second, all_nullable(kind))
    pq.write_table(pa.table({"c": values}), tmp_path / "t/1.parquet")
    table = Pipeline.read_parquet(str(tmp_path / "t")).to_table("/")
    table.validate(full=True)
    assert table["c"].to_pylist() == first + second
    assert table.schema.field("c").type == all_nullable(kind)


TEXTS, BYTES = ["a", None, "b" * 20] * 40, [b"a", None, b"b" * 20] * 40
VIEWS = {
    "strings": pa.array(TEXTS, pa.string_view()),
    "binary": pa.array(BYTES, pa.binary_view()),
    "lists of strings": pa.array([[t, None] for t in TEXTS], pa.list_(pa.string_view())),
    "structs of strings": pa.array([{"x": t} for t in TEXTS], pa.struct({"x": pa.string_view()})),
    "maps": pa.array([[("k", t)] for t in TEXTS], pa.map_(pa.string_view(), pa.string_view())),
    "list views": pa.array([[1, None], None, []] * 40, pa.list_view(pa.int64())),
    "large list views": pa.array([["a"], None, []] * 40, pa.large_list_view(pa.string_view())),
}


@pytest.mark.parametrize("array", VIEWS.values(), ids=VIEWS)
def test_views_are_read_and_filtered(tmp_path: Path, array: pa.Array) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"c": array, "i": range(120)})
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(2):
            writer.write_table(table)
    rows = Pipeline.read_parquet(str(path))
    assert rows.to_table("/").to_pylist() == table.to_pylist() * 2
    assert rows.filter("i > 50").to_table("/").to_pylist() == table.to_pylist()[51:] * 2
    assert "view" not in str(rows.to_table("/").schema)


def test_keys_that_are_views_are_joined_filled_and_sampled(tmp_path: Path) -> None:
    path, side = tmp_path / "a.parquet", tmp_path / "side.parquet"
    array = VIEWS["strings"]
    pq.write_table(pa.table({"c": array, "i": range(120)}), path, row_group_size=30)
    pq.write_table(pa.table({"c": pa.array(["a"], pa.string_view()), "v": [1]}), side)
    rows = Pipeline.read_parquet(str(path))
    assert rows.join(str(side), on="c").to_table("/")["v"].to_pylist() == [1, None, None] * 40
    assert rows.filter("c = 'a'").to_table("/").num_rows == 40
    assert rows.fill_null({"c": "z"}).to_table("/")["c"].null_count == 0
    assert rows.hash_bucket("c", buckets=9).filter("i > 9").to_table("/").num_rows == 110
    assert rows.sample(50, by="c").to_table("/").num_rows % 40 == 0


def test_views_and_strings_are_one_column(tmp_path: Path) -> None:
    folder = put(tmp_path / "t", pa.array(["a"]), pa.array(["b"], pa.string_view()))
    assert Pipeline.read_parquet(folder).to_table("/")["c"].to_pylist() == ["a", "b"]


def test_views_of_lists_in_lists_are_refused_by_name(tmp_path: Path) -> None:
    kind = pa.list_(pa.list_view(pa.int64()))
    folder = put(tmp_path / "t", pa.array([[[1], None], None], kind))
    with pytest.raises(SourceError, match="'c'"):
        Pipeline.read_parquet(folder).plan("/")


def test_different_types_are_refused(tmp_path: Path) -> None:
    for other in (pa.array([1]), pa.array([["a"]])):
        with pytest.raises(SourceError, match="mixed schemas"):
            Pipeline.read_parquet(put(tmp_path / "t", pa.array(["a"]), other)).to_table("/")
