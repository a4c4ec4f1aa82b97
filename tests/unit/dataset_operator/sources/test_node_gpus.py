"""GPUs on a page of Ray's, whatever the page is, and what of them counts as known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset_operator.names import Owner
from dataset_operator.ray.families import MAX_LINE_BYTES, MAX_LINES, FamilyReader
from dataset_operator.sources.gpus import GpuBook, GpuUse
from dataset_operator.sources.ray_nodes import FAMILY, parse_gpus

OWNER = Owner(name="clicks", namespace="team", uid="1")
OTHER = Owner(name="views", namespace="team", uid="2")
# As Ray 2.60 writes them.
LABELS = (
    'GpuDeviceName="NVIDIA H200",GpuIndex="{}",GpuUuid="GPU-{}",IsHeadNode="false",'
    'RayNodeType="worker",SessionName="session_2026-11-23_01-48-08_188650_9480",'
    'Version="2.60.0",ip="10.0.0.7",otel_scope_name="ray._private.telemetry.open_telemetry_metric_'
    'recorder",otel_scope_schema_url="",otel_scope_version=""'
)


def line(index: object, value: object, name: str = FAMILY) -> str:
    return f"{name}{{{LABELS.format(index, index)}}} {value}\n"


PAGE = (
    "# HELP ray_node_gpus_available Total GPUs available on a ray node\n"
    "# TYPE ray_node_gpus_available gauge\n"
    + line(0, 1.0, "ray_node_gpus_available")
    + "# HELP ray_node_gpus_utilization Total GPUs usage on a ray node\n"
    "# TYPE ray_node_gpus_utilization gauge\n"
    + line(0, 93.0)
    + line(1, 71.0)
    + "# HELP ray_node_mem_used Memory usage on a ray node\n"
    "# TYPE ray_node_mem_used gauge\n"
    'ray_node_mem_used{ip="10.0.0.7"} 1e+09\n'
)


def read(page: bytes, size: int = 1 << 16) -> bytes:
    reader = FamilyReader(FAMILY)
    for start in range(0, len(page), size):
        reader.feed(page[start : start + size])
        assert len(reader._rest) <= MAX_LINE_BYTES
    return reader.end()


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 16])
def test_one_family_is_read_in_whatever_parts_the_page_comes(size: int) -> None:
    assert read(PAGE.encode(), size).decode() == line(0, 93.0) + line(1, 71.0)
    assert parse_gpus(read(PAGE.encode(), size).decode()) == {"0": 93.0, "1": 71.0}


def test_nothing_is_read_after_the_family() -> None:
    reader = FamilyReader(FAMILY)
    reader.feed(PAGE.encode())
    assert reader.is_done
    reader.feed(line(2, 1.0).encode())
    assert b'GpuIndex="2"' not in reader.end()


def test_a_page_that_ends_amid_a_line_tells_no_half_of_a_number() -> None:
    assert parse_gpus(read((line(0, 93.0) + line(1, 71.0)).encode()[:-3]).decode()) == {"0": 93.0}


def test_no_more_lines_are_kept_than_a_node_has_gpus() -> None:
    page = "".join(line(index, 1.0) for index in range(10 * MAX_LINES)).encode()
    assert read(page).count(b"\n") == MAX_LINES


@pytest.mark.parametrize(
    ("bad", "known"),
    [
        (line(0, "NaN"), {}),
        (line(0, "+Inf"), {}),
        (line(0, -1), {}),  # a slice of a GPU (MIG)
        (line(0, 100.5), {}),
        (line(0, "busy"), {}),
        (line(0, 93.0) + line(0, 93.0), {}),
        (line(0, 93.0) + line(0, 12.0) + line(1, 5.0), {"1": 5.0}),
        (line("", 93.0), {}),
        (line("0" * 40, 93.0), {}),
        (f"{FAMILY} 93.0\n", {}),
        (f"{FAMILY}_total 93.0\n", {}),
        (line(0, 93.0)[:40] + "\n", {}),
        (line(0, 0.0) + line(1, 100.0), {"0": 0.0, "1": 100.0}),
    ],
    ids=[
        "not a number",
        "infinite",
        "below 0",
        "beyond 100",
        "a word",
        "told twice, alike",
        "told twice",
        "no index",
        "a long index",
        "no labels",
        "another family",
        "half a line",
        "the ends of the scale",
    ],
)
def test_what_cannot_be_is_left_out(bad: str, known: dict[str, float]) -> None:
    assert parse_gpus(read(bad.encode()).decode()) == known


PARTS = st.one_of(
    st.sampled_from(PAGE.splitlines(keepends=True)).map(str.encode),
    st.binary(max_size=60),
    st.text(max_size=40).map(lambda text: f"{FAMILY}{text}\n".encode()),
    st.floats().map(lambda value: line(0, value).encode()),
    st.integers(0, 3).map(lambda index: line(index, 50).encode()),
    st.just(b"x" * (2 * MAX_LINE_BYTES)),
)


@given(parts=st.lists(PARTS, max_size=60), size=st.integers(1, 5000))
def test_any_page_gives_percents_or_nothing(parts: list[bytes], size: int) -> None:
    page = b"".join(parts)
    kept = read(page, size)
    assert kept == read(page)
    assert len(kept) <= MAX_LINES * (MAX_LINE_BYTES + 1)
    found = parse_gpus(kept.decode(errors="replace"))
    assert all(0.0 <= value <= 100.0 for value in found.values())


# --- what is known of a run's GPUs ----------------------------------------------------------------


def told(*readings: tuple[float, dict[str, float]]) -> GpuBook:
    book = GpuBook(stale_seconds=45.0)
    for at, percents in readings:
        book.take_in(OWNER, percents, at)
    return book


def test_the_mean_and_the_slowest_are_over_all_gpus() -> None:
    book = told((0.0, {"a/0": 90.0, "a/1": 50.0}))
    assert book.judge(OWNER, 2, 0.0) == (GpuUse(mean=0.7, slowest=0.5), "")


@pytest.mark.parametrize(
    ("readings", "now", "why"),
    [
        ([], 0.0, "2 GPUs 0 tell"),
        ([(0.0, {"a/0": 90.0})], 0.0, "2 GPUs 1 tell"),
        ([(0.0, {"a/0": 90.0, "a/1": 50.0, "a/2": 50.0})], 0.0, "2 GPUs 3 tell"),
        ([(0.0, {"a/0": 90.0, "a/1": 50.0})], 45.1, "2 GPUs 0 tell"),  # 45.0 is known still
        ([(0.0, {"a/0": 90.0, "a/1": 50.0}), (30.0, {"a/0": 90.0})], 46.0, "2 GPUs 1 tell"),
        ([(0.0, {"a/0": 90.0, "a/1": 0.0})], 0.0, "nothing but 0"),
        ([(0.0, {"a/0": 0.0, "a/1": 0.0}), (15.0, {"a/0": 1.0})], 15.0, "nothing but 0"),
    ],
    ids=[
        "absent",
        "one is absent",
        "more than the trainers have",
        "stale",
        "one is stale",
        "0 of one that was never busy",
        "0 while the other was",
    ],
)
def test_what_is_missing_is_unknown_and_never_zero(
    readings: list[tuple[float, dict[str, float]]], now: float, why: str
) -> None:
    use, reason = told(*readings).judge(OWNER, 2, now)
    assert use is None
    assert why in reason


def test_a_gpu_that_was_seen_busy_and_then_idles_is_at_zero() -> None:
    book = told((0.0, {"a/0": 3.0}), (15.0, {"a/0": 0.0}))
    assert book.judge(OWNER, 1, 15.0) == (GpuUse(mean=0.0, slowest=0.0), "")


def test_a_scrape_that_failed_is_bridged_by_the_value_before() -> None:
    book = told((0.0, {"a/0": 80.0}), (15.0, {}), (30.0, {}), (45.0, {}))
    assert book.judge(OWNER, 1, 45.0)[0] == GpuUse(mean=0.8, slowest=0.8)
    assert book.judge(OWNER, 1, 46.0)[0] is None


def test_pods_that_are_gone_and_other_runs_do_not_count() -> None:
    book = told((0.0, {"a/0": 80.0, "b/0": 20.0}))
    book.take_in(OTHER, {"a/0": 1.0}, 0.0)
    assert book.judge(OWNER, 1, 0.0, ["b/"])[0] == GpuUse(mean=0.2, slowest=0.2)


def test_runs_that_are_over_are_forgotten() -> None:
    book = told((0.0, {"a/0": 80.0}))
    book.take_in(OTHER, {}, 601.0)
    assert list(book._runs) == [OTHER]


@given(
    readings=st.lists(
        st.tuples(
            st.floats(0.0, 60.0),
            st.dictionaries(st.sampled_from("abcd"), st.floats(0.0, 100.0), max_size=4),
        ),
        max_size=20,
    ),
    expected=st.integers(1, 4),
)
def test_what_is_known_is_a_ratio(
    readings: list[tuple[float, dict[str, float]]], expected: int
) -> None:
    book, now = GpuBook(stale_seconds=45.0), 0.0
    for pause, percents in readings:
        now += pause
        book.take_in(OWNER, percents, now)
        use, why = book.judge(OWNER, expected, now)
        assert (use is None) == bool(why)
        if use is not None:
            assert 0.0 <= use.slowest <= use.mean <= 1.0 or math.isclose(use.slowest, use.mean)
