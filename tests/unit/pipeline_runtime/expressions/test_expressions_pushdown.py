"""A dataset filter never loses a row that the expression keeps."""

import datetime as dt
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime.expressions import mask, parse, to_dataset_filter

NAN = float("nan")
NUM_TABLES = 40
SCHEMA = pa.schema(
    {
        "row": pa.int64(),
        "i": pa.int32(),
        "u": pa.uint64(),
        "f": pa.float64(),
        "f32": pa.float32(),
        "s": pa.string(),
        "label": pa.dictionary(pa.int32(), pa.string()),
        "flag": pa.bool_(),
        "d": pa.date32(),
        "ts": pa.timestamp("us"),
        "tz": pa.timestamp("ms", "Europe/Paris"),
        "part": pa.string(),
    }
)
VALUES: dict[str, list[object]] = {
    "i": [-1, 0, 1, 2, 300],
    "u": [0, 1, 2**63, 2**64 - 1],
    "f": [-1.0, -0.0, 0.0, 1.0, 2.5, NAN],
    "f32": [0.1, 0.0, -0.0, 5.0, NAN],
    "s": ["", "a", "b", "ä"],
    "label": ["a", "b"],
    "flag": [True, False],
    "d": [dt.date(2026, 1, 1), dt.date(2026, 1, 2), dt.date(1969, 1, 1)],
    "ts": [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 1), dt.datetime(1969, 1, 1)],
    "tz": [dt.datetime(2026, 1, 1, 23), dt.datetime(2026, 1, 2), dt.datetime(1969, 1, 1)],
    "part": ["a", "b", "c d"],
}
LITERALS = {
    "i": ["0", "1", "300", "1.5", "3000000000", "null"],
    "u": ["0", "1", "18446744073709551615", "-1"],
    "f": ["0.0", "-0.0", "1", "2.5", "1e300"],
    "f32": ["0.1", "0", "5.0"],
    "s": ["''", "'a'", "'ä'", "null"],
    "label": ["'a'", "'z'"],
    "flag": ["true", "false"],
    "d": ["'2026-01-01'", "'2026-01-01 12:00:00'", "date '1969-01-01'"],
    "ts": ["'2026-01-01'", "timestamp '2026-01-01 00:00:01'", "date '1969-01-01'"],
    "tz": ["'2026-01-02'", "'2026-01-01 23:00:00Z'"],
    "part": ["'a'", "'c d'", "'z'"],
}


@st.composite
def predicates(draw: st.DrawFn, depth: int = 3) -> str:
    """A filter of the pieces that are pushed down, some that are not, and their negations."""
    if depth == 0 or draw(st.booleans()):
        return draw(leaves())
    a, b = draw(predicates(depth - 1)), draw(predicates(depth - 1))
    shape = draw(st.sampled_from(["({} and {})", "({} or {})", "(not {})", "({} = {})"]))
    return shape.format(a, b)


@st.composite
def leaves(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(list(VALUES)))
    a, b = (draw(st.sampled_from(LITERALS[name])) for _ in "ab")
    op = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="]))
    shapes = [
        f"({name} {op} {a})",
        f"({a} {op} {name})",
        f"({name} in ({a}, {b}))",
        f"({name} not in ({a}, {b}))",
        f"({name} between {a} and {b})",
        f"({name} not between {a} and {b})",
        f"({name} is null)",
        f"({name} is not null)",
        "flag",
        "(i % 2 = 1)",
        "(u > i)",
        "(f != f)",
    ]
    return draw(st.sampled_from(shapes))


def build_table(random: Random) -> pa.Table:
    """Runs of equal values, so that row groups differ and some hold one value only."""
    num_rows = random.randint(1, 12)
    columns: dict[str, pa.Array] = {"row": pa.array(range(num_rows))}
    for name, values in VALUES.items():
        runs = random.choices([None, *values], k=random.randint(1, 6))
        column = [runs[i * len(runs) // num_rows] for i in range(num_rows)]
        columns[name] = pa.array(column, SCHEMA.field(name).type)
    return pa.table(columns, schema=SCHEMA)


def write(table: pa.Table, root: str, rows_per_group: int) -> None:
    ds.write_dataset(
        table,
        root,
        format="parquet",
        partitioning=ds.partitioning(pa.schema([("part", pa.string())]), flavor="hive"),
        max_rows_per_group=rows_per_group,
        min_rows_per_group=1,
    )


def read_rows(dataset: ds.Dataset, keep: pc.Expression) -> list[set[int]]:
    """The rows that pass the filter, and those of all row groups that pass it."""
    passed = dataset.to_table(columns=["row"], filter=keep)
    groups = [
        group.to_table(schema=SCHEMA, columns=["row"])
        for fragment in dataset.get_fragments(filter=keep)
        for group in fragment.split_by_row_group(keep, schema=SCHEMA)
    ]
    read = {row for group in groups for row in group["row"].to_pylist()}
    return [set(passed["row"].to_pylist()), read]


class Stored:
    """Tables, each with the partitioned dataset that holds it; Hypothesis prints it, so short."""

    def __init__(self, pairs: list[tuple[pa.Table, ds.Dataset]]) -> None:
        self.pairs = pairs


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    random = Random(20260101)
    pairs = []
    for _ in range(NUM_TABLES):
        table, root = build_table(random), str(tmp_path_factory.mktemp("table"))
        write(table, root, rows_per_group=random.randint(1, 4))
        hive = ds.partitioning(pa.schema([("part", pa.string())]), flavor="hive")
        pairs.append((table, ds.dataset(root, format="parquet", schema=SCHEMA, partitioning=hive)))
    return Stored(pairs)


@settings(max_examples=examples(60), deadline=None)
@given(text=predicates(), position=st.integers(0, NUM_TABLES - 1))
def test_no_row_is_lost(text: str, position: int, stored: Stored) -> None:
    expr, (table, dataset) = parse(text), stored.pairs[position]
    keep = to_dataset_filter(expr, SCHEMA)
    if keep is None:
        return
    needed = set(table.filter(mask(expr, table))["row"].to_pylist())
    for kept in read_rows(dataset, keep):
        assert needed <= kept


@pytest.mark.parametrize(
    ("text", "pushed"),
    [
        pytest.param("i > 1", "(i > 1)", id="a comparison"),
        pytest.param("1 < i", "(i > 1)", id="a mirrored comparison"),
        pytest.param("not i > 1", "(i <= 1)", id="a negated comparison"),
        pytest.param("d >= '2026-01-01'", "(d >= 2026-01-01)", id="a date as a string"),
        pytest.param("s in ('a', 'b')", None, id="a set"),
        pytest.param("i between 0 and 1", "((i >= 0) and (i <= 1))", id="a range"),
        pytest.param("label = 'a'", '(label == "a")', id="a dictionary"),
        pytest.param("flag and not flag", "(flag and invert(flag))", id="a flag"),
        pytest.param("s is not null", "is_valid(s)", id="not null"),
        pytest.param("i > 1 and f != 2", "(i > 1)", id="what cannot go is left out of an and"),
        pytest.param("f in (0.0, 1.0)", "((f == 0) or (f == 1))", id="floats in a set"),
    ],
)
def test_what_is_pushed(text: str, pushed: str | None) -> None:
    keep = to_dataset_filter(parse(text), SCHEMA)
    assert keep is not None
    assert pushed is None or str(keep) == pushed


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("f != 2.5", id="NaN passes !="),
        pytest.param("not f > 2.5", id="NaN passes a negated comparison"),
        pytest.param("not (f > 2.5 and i > 1)", id="NaN passes inside a negated and"),
        pytest.param("f not in (2.5)", id="NaN passes not in"),
        pytest.param("i > 1.5", id="an integer compared as a float"),
        pytest.param("i > 3000000000", id="a literal beyond the column's type"),
        pytest.param("i = null", id="null"),
        pytest.param("i in (1, null)", id="null in a set"),
        pytest.param("label is null", id="null in a dictionary"),
        pytest.param("i + 1 > 2", id="arithmetic"),
        pytest.param("u > i", id="two columns"),
        pytest.param("i > 1 or lower(s) = 'a'", id="one side of an or"),
        pytest.param("true", id="a constant"),
        pytest.param("case when flag then i > 1 end", id="case"),
        pytest.param("i + 1", id="no boolean"),
    ],
)
def test_what_is_not_pushed(text: str) -> None:
    assert to_dataset_filter(parse(text), SCHEMA) is None


def test_partitions_and_row_groups_are_skipped(tmp_path: Path) -> None:
    table = pa.table({"i": range(8), "part": ["a"] * 4 + ["b"] * 4})
    write(table, str(tmp_path), rows_per_group=2)
    dataset = ds.dataset(tmp_path, format="parquet", partitioning="hive")
    keep = to_dataset_filter(parse("part = 'b' and i >= 6"), dataset.schema)
    fragments = list(dataset.get_fragments(filter=keep))
    assert [fragment.path.rsplit("/", 2)[1] for fragment in fragments] == ["part=b"]
    groups = [
        group
        for fragment in fragments
        for group in fragment.split_by_row_group(keep, schema=dataset.schema)
    ]
    assert [group.to_table()["i"].to_pylist() for group in groups] == [[6, 7]]
