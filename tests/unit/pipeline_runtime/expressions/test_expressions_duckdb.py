"""Random well-typed expressions over random tables give what DuckDB gives.

Each strategy draws one meaning and spells it twice: in this language and in DuckDB's SQL, which
differs in a few documented points (integers are widened by hand, `/` and `%` by zero raise there).
"""

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.expressions import evaluate, infer_type, mask, parse

MAX_DEPTH = 2
NUM_EXAMPLES = examples(50)


@dataclass(frozen=True, slots=True)
class Pair:
    """One expression in both languages."""

    ours: str
    duck: str


def same(text: str) -> Pair:
    return Pair(text, text)


def fill(template: str, *parts: Pair, duck: str | None = None) -> Pair:
    """Both spellings of a template with `{}` for its parts."""
    ours = template.format(*(part.ours for part in parts))
    return Pair(ours, (duck or template).format(*(part.duck for part in parts)))


# -- tables --------------------------------------------------------------------------------------

INTS = {
    "i8": pa.int8(),
    "i16": pa.int16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "u64": pa.uint64(),
}
WORDS = ["", "a", "Ab", "añb", " x ", "50%", "a_b", "日本", "it's", '"q"', "\\", "é😀é"]
DAYS = st.dates(dt.date(1960, 1, 1), dt.date(2040, 12, 31))
TIMES = st.datetimes(dt.datetime(1960, 1, 1), dt.datetime(2040, 12, 31))
EPOCH = dt.datetime(1970, 1, 1)


def integers_of(dtype: pa.DataType) -> tuple[int, int]:
    """The range of an integer type."""
    low = 0 if pa.types.is_unsigned_integer(dtype) else -(2 ** (dtype.bit_width - 1))
    return low, low + 2**dtype.bit_width - 1


def draw_integer(dtype: pa.DataType, random: Random) -> int:
    """Any of the type, small ones often, so that values meet."""
    low, high = integers_of(dtype)
    edges = [low, high, random.randint(low, high)]
    return random.choice([*edges, *(random.randint(max(low, -3), 3) for _ in edges)])


def draw_time(random: Random) -> dt.datetime:
    near = dt.datetime(2026, 1, random.randint(1, 3), random.choice([0, 12]))
    far = EPOCH + dt.timedelta(microseconds=random.randint(-(2**50), 2**50))
    return random.choice([near, far])


def draw_value(name: str, random: Random) -> object:
    """A value for a column, null for one in six."""
    if random.random() < 1 / 6:
        return None
    if name in INTS:
        return draw_integer(INTS[name], random)
    if name in ("s", "large", "label"):
        return random.choice([*WORDS, "".join(random.choices("aé% _\\", k=3))])
    time = draw_time(random)
    values: dict[str, object] = {
        "f64": random.choice([0.0, -0.0, 0.5, -2.5, random.uniform(-1e6, 1e6)]),
        "f32": random.choice([0.1, 0.0, 1.5, random.uniform(-100, 100)]),
        "flag": random.random() < 0.5,
        "d": time.date(),
        "us": time,
        "ms": time.replace(microsecond=time.microsecond // 1000 * 1000),
        "l": random.choices([None, -3, -1, 0, 1, 2], k=random.randint(0, 3)),
    }
    return values[name]


TYPES = {
    **INTS,
    "f64": pa.float64(),
    "f32": pa.float32(),
    "s": pa.string(),
    "large": pa.large_string(),
    "label": pa.dictionary(pa.int16(), pa.string()),
    "flag": pa.bool_(),
    "d": pa.date32(),
    "us": pa.timestamp("us"),
    "ms": pa.timestamp("ms"),
    "l": pa.list_(pa.int32()),
}


def build_table(seed: int) -> pa.Table:
    """A table of all kinds of columns, in one to three chunks, some of them empty."""
    random = Random(seed)
    sizes = [random.choice([0, 1, 5, 12]) for _ in range(random.randint(1, 3))]
    columns = {}
    for name, dtype in TYPES.items():
        arrays = [pa.array([draw_value(name, random) for _ in range(n)], dtype) for n in sizes]
        columns[name] = pa.chunked_array(arrays)
    return pa.table(columns)


# Drawn once: Hypothesis would spend ten times as long on a table as on an expression.
TABLES = [build_table(seed) for seed in range(40)]


# -- expressions ---------------------------------------------------------------------------------


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def drawn(draw: st.DrawFn, options: list[str]) -> str:
    return draw(st.sampled_from(options))


@st.composite
def an_integer(draw: st.DrawFn, depth: int = MAX_DEPTH) -> Pair:
    """An integer whose arithmetic stays within int64: leaves are small."""
    if depth == 0 or draw(st.booleans()):
        small = fill("i8", duck='"i8"::bigint'), fill("u8", duck='"u8"::bigint')
        literal = draw(st.integers(-5, 200))
        # A sign before a literal in parentheses, since DuckDB's casts bind tighter than it.
        return draw(st.sampled_from([*small, Pair(f"{literal}", f"({literal})::bigint")]))
    a, b = draw(an_integer(depth - 1)), draw(an_integer(depth - 1))
    match drawn(draw, ["op", "%", "-", "abs", "text", "time", "days", "list", "cast", "choice"]):
        case "op":
            return fill(f"({{}} {drawn(draw, ['+', '-', '*'])} {{}})", a, b)
        case "%":
            return fill("({} % {})", a, b, duck="({} % nullif({}, 0))")
        case "-":
            return fill("(- {})", a)
        case "abs":
            return fill("abs({})", a)
        case "text":
            return fill("length({})", draw(a_text(depth - 1)))
        case "time":
            part = drawn(draw, ["year", "month", "day", "hour", "minute"])
            return fill(f"{part}({{}})", draw(a_time(depth - 1)))
        case "days":
            days = draw(a_date(depth - 1)), draw(a_date(depth - 1))
            return fill("date_diff_days({}, {})", *days, duck="date_diff('day', {}, {})")
        case "list":
            lists = ["list_length(l)", "list_sum(l)", "list_min(l)", "list_element(l, -1)"]
            ducks = ["len(l)", "list_sum(l)::bigint", "list_min(l)::bigint", "l[-1]::bigint"]
            return draw(st.sampled_from([Pair(*pair) for pair in zip(lists, ducks, strict=True)]))
        case "cast":
            flag = draw(a_boolean(depth - 1))
            return fill("cast({} as int64)", flag, duck="cast({} as bigint)")
        case _:
            return draw(a_choice(a, b, depth - 1))


@st.composite
def a_float(draw: st.DrawFn, depth: int = MAX_DEPTH) -> Pair:
    if depth == 0 or draw(st.booleans()):
        value = draw(st.sampled_from([0.0, 0.5, 2.0, 3.25, 1e3]))
        f32 = Pair("cast(f32 as float64)", '"f32"::double')
        return draw(st.sampled_from([same("f64"), f32, Pair(f"{value}", f"{value}::double")]))
    a, b = draw(a_float(depth - 1)), draw(a_float(depth - 1))
    match drawn(draw, ["op", "/", "mixed", "int/", "round", "sqrt", "log1p", "choice"]):
        case "op":
            return fill(f"({{}} {drawn(draw, ['+', '-', '*'])} {{}})", a, b)
        case "/":
            return fill("({} / {})", a, b, duck="({} / nullif({}, 0))")
        case "mixed":
            return fill("({} + {})", a, draw(an_integer(depth - 1)))
        case "int/":
            ints = draw(an_integer(depth - 1)), draw(an_integer(depth - 1))
            return fill("({} / {})", *ints, duck="({}::double / nullif({}, 0))")
        case "round":
            return fill(f"{drawn(draw, ['floor', 'ceil', 'abs', 'round'])}({{}})", a)
        case "sqrt":
            return fill("sqrt({0})", a, duck="case when {0} >= 0 then sqrt({0}) end")
        case "log1p":
            return fill("log1p({0})", a, duck="case when {0} > -1 then ln(1 + {0}) end")
        case _:
            return draw(a_choice(a, b, depth - 1))


@st.composite
def a_text(draw: st.DrawFn, depth: int = MAX_DEPTH) -> Pair:
    if depth == 0 or draw(st.booleans()):
        word = quote(draw(st.sampled_from(WORDS)))
        return draw(st.sampled_from([same("s"), same("large"), same("label"), same(word)]))
    a, b = draw(a_text(depth - 1)), draw(a_text(depth - 1))
    match drawn(draw, ["lower", "trim", "substr", "||", "concat", "choice"]):
        case "lower":
            return fill(f"{drawn(draw, ['lower', 'upper'])}({{}})", a)
        case "trim":
            return fill("trim({})", a)
        case "substr":
            start = draw(st.sampled_from([1, 2, 3]))
            return fill(f"substr({{}}, {start}, {draw(st.integers(0, 3))})", a)
        case "||":
            return fill("({} || {} || 'x')", a, b)
        case "concat":
            return fill("concat({}, {})", a, b)
        case _:
            return draw(a_choice(a, b, depth - 1))


@st.composite
def a_date(draw: st.DrawFn, depth: int = MAX_DEPTH) -> Pair:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([same("d"), same(f"date '{draw(DAYS)}'")]))
    a, b = draw(a_date(depth - 1)), draw(a_date(depth - 1))
    if draw(st.booleans()):
        return fill("date({})", draw(a_time(depth - 1)), duck="cast({} as date)")
    return draw(a_choice(a, b, depth - 1))


@st.composite
def a_time(draw: st.DrawFn, depth: int = MAX_DEPTH) -> Pair:
    if depth == 0 or draw(st.booleans()):
        literal = same(f"timestamp '{draw(TIMES).isoformat(' ')}'")
        return draw(st.sampled_from([same("us"), same("ms"), literal]))
    a, b = draw(a_time(depth - 1)), draw(a_time(depth - 1))
    return draw(a_choice(a, b, depth - 1))


@st.composite
def a_choice(draw: st.DrawFn, a: Pair, b: Pair, depth: int) -> Pair:
    """One of two values of a type."""
    name = drawn(draw, ["case", "if", "coalesce", "nullif", "greatest", "least", "subject"])
    if name in ("coalesce", "nullif", "greatest", "least"):
        return fill(f"{name}({{}}, {{}})", a, b)
    if name == "subject":
        subject = draw(an_integer(0))
        return fill("case {} when 1 then {} when null then {} end", subject, a, b)
    condition = draw(a_boolean(depth))
    if name == "if":
        duck = "(case when {} then {} else {} end)"
        return fill("if({}, {}, {})", condition, a, b, duck=duck)
    return fill("(case when {} then {} else {} end)", condition, a, b)


COMPARISONS = ["=", "!=", "<", "<=", ">", ">="]


@st.composite
def a_comparison(draw: st.DrawFn, depth: int) -> Pair:
    op = drawn(draw, COMPARISONS)
    kind = draw(st.sampled_from([an_integer, a_float, a_text, a_date, a_time]))
    a, b, c = draw(kind(depth)), draw(kind(depth)), draw(kind(depth))
    match drawn(
        draw, ["op", "in", "not in", "between", "not between", "is null", "wide", "string"]
    ):
        case "op":
            return fill(f"({{}} {op} {{}})", a, b)
        case "in" | "not in" as name:
            null = same("null") if draw(st.booleans()) else c
            return fill(f"({{}} {name} ({{}}, {{}}))", a, b, null)
        case "between" | "not between" as name:
            return fill(f"({{}} {name} {{}} and {{}})", a, b, c)
        case "is null":
            return fill(f"({{}} {drawn(draw, ['is null', 'is not null'])})", a)
        case "wide":
            return draw(a_wide_comparison(op))
        case _:
            return draw(a_comparison_with_a_string(op))


@st.composite
def a_wide_comparison(draw: st.DrawFn, op: str) -> Pair:
    """Integers over their whole range, of any two widths and signs, and literals in lists."""
    a, b = drawn(draw, list(INTS)), drawn(draw, list(INTS))
    literal = draw(st.integers(*integers_of(INTS[b])))
    sides = [fill(f"({a} {op} {b})", duck=f"({a}::hugeint {op} {b}::hugeint)")]
    sides.append(fill(f"({a} {op} {literal})", duck=f"({a}::hugeint {op} ({literal})::hugeint)"))
    sides.append(fill(f"({a} in ({literal}, 1))", duck=f"({a}::hugeint in (({literal}), 1))"))
    return draw(st.sampled_from(sides))


@st.composite
def a_comparison_with_a_string(draw: st.DrawFn, op: str) -> Pair:
    """A string literal beside a date or a timestamp, and a date beside a timestamp."""
    day, time = draw(DAYS), draw(TIMES)
    pairs = [
        same(f"(d {op} '{day}')"),
        same(f"(us {op} '{time.isoformat(' ')}')"),
        same(f"('{day}' {op} ms)"),
        same(f"(d {op} ms)"),
        Pair(f"(f32 {op} 0.1)", f"(f32 {op} 0.1::float)"),
    ]
    return draw(st.sampled_from(pairs))


@st.composite
def a_match(draw: st.DrawFn, depth: int) -> Pair:
    text = draw(a_text(depth))
    pattern = quote(draw(st.text("aéb%_ \\", max_size=5)))
    word = quote(draw(st.sampled_from(WORDS)))
    name = drawn(draw, ["like", "not like", "contains", "starts_with", "ends_with", "regexp"])
    if name in ("like", "not like"):
        return fill(f"({{}} {name} {pattern})", text)
    if name == "regexp":
        return fill("regexp_match({}, '^a.?b')", text, duck="regexp_matches({}, '^a.?b')")
    return fill(f"{name}({{}}, {word})", text)


@st.composite
def a_boolean(draw: st.DrawFn, depth: int = MAX_DEPTH) -> Pair:
    if depth == 0:
        return draw(
            st.sampled_from([same("flag"), same("true"), same("(i8 > 0)"), same("(s = 'a')")])
        )
    a, b = draw(a_boolean(depth - 1)), draw(a_boolean(depth - 1))
    names = ["compare", "compare", "match", "and", "or", "not", "list", "is null", "="]
    match drawn(draw, names):
        case "compare":
            return draw(a_comparison(depth - 1))
        case "match":
            return draw(a_match(depth - 1))
        case "and" | "or" as name:
            null = same("null") if draw(st.booleans()) else b
            return fill(f"({{}} {name} {{}} {name} {{}})", a, b, null)
        case "not":
            return fill("(not {})", a)
        case "list":
            return fill("list_contains(l, {})", draw(an_integer(depth - 1)))
        case "=":
            return fill(f"({{}} {drawn(draw, COMPARISONS)} {{}})", a, b)
        case _:
            return fill("({} is null)", a)


# -- the comparison ------------------------------------------------------------------------------


def connect() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("set threads = 1")
        for position, table in enumerate(TABLES):
            connection.register(f"t{position}", table)
        yield connection


# One for the module: opening takes 50 ms, a query 1 ms.
duck_database = pytest.fixture(connect, scope="module")


def ask_duckdb(text: str, position: int, database: duckdb.DuckDBPyConnection) -> list[object]:
    return [row[0] for row in database.execute(f"select {text} from t{position}").fetchall()]


def is_same(ours: object, duck: object) -> bool:
    if isinstance(ours, float) and isinstance(duck, float):
        return math.isclose(ours, duck, rel_tol=1e-9, abs_tol=1e-12)
    return ours == duck and (ours is None) == (duck is None)


Rows = list[tuple[object, object]]


def ask_both(pair: Pair, position: int, database: duckdb.DuckDBPyConnection) -> Rows:
    """One expression on one table: what we give and what DuckDB gives, a row each."""
    expr, table = parse(pair.ours), TABLES[position]
    try:
        result = evaluate(expr, table)
        expected = ask_duckdb(pair.duck, position, database)
    except ExpressionError as error:
        if "range" not in error.message:
            raise
        # DuckDB may or may not look at the value that leaves int64; see the tests of functions.
        reject()
    except (duckdb.OutOfRangeException, duckdb.ConversionException):
        reject()
    assert result.type == infer_type(expr, table.schema)
    return list(zip(result.to_pylist(), expected, strict=True))


def different(rows: Rows) -> Rows:
    return [row for row in rows if not is_same(*row)]


POSITIONS = st.integers(0, len(TABLES) - 1)
Database = duckdb.DuckDBPyConnection


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(pair=a_boolean(), position=POSITIONS)
def test_filters_give_what_duckdb_gives(pair: Pair, position: int, duck_database: Database) -> None:
    rows = ask_both(pair, position, duck_database)
    assert different(rows) == []
    kept = mask(parse(pair.ours), TABLES[position]).to_pylist()
    assert kept == [duck is True for _, duck in rows]


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(pair=st.one_of(an_integer(), a_float()), position=POSITIONS)
def test_numbers_are_what_duckdb_gives(pair: Pair, position: int, duck_database: Database) -> None:
    assert different(ask_both(pair, position, duck_database)) == []


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(pair=st.one_of(a_text(), a_date(), a_time()), position=POSITIONS)
def test_texts_and_times_are_what_duckdb_gives(
    pair: Pair, position: int, duck_database: Database
) -> None:
    assert different(ask_both(pair, position, duck_database)) == []
