"""The coverage of a cache table: what has to be computed again, and how it is stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.table import Table

from pipeline_runtime.materialization.coverage import (
    COVERAGE_PROPERTY,
    Covered,
    Input,
    decode_coverage,
    encode_coverage,
    find_missing,
    read_coverage,
)
from tests.support.tables.days_table import compact, make_rows

SOURCE = Input(table="t", fingerprint="a", snapshot_id=2**63 - 1)
SIDE = Input(table="side", fingerprint="s")
STORED = {"1": Covered(inputs=(SOURCE, SIDE)), "2": Covered(inputs=(SOURCE, SIDE), window="x > 1")}


def _covered(fingerprint: str = "a", side: str = "s", window: str = "") -> Covered:
    source = Input(table="t", fingerprint=fingerprint, snapshot_id=8)
    return Covered(inputs=(source, Input(table="side", fingerprint=side)), window=window)


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        pytest.param({"1": _covered()}, {}, id="same-files"),
        pytest.param({}, {}, id="nothing-wanted"),
        pytest.param({"3": _covered()}, {"3": "new"}, id="new"),
        pytest.param({"1": _covered(window="y")}, {"1": "window"}, id="fewer-rows-of-it"),
        pytest.param({"2": _covered()}, {"2": "window"}, id="more-rows-of-it"),
        pytest.param({"1": _covered("b")}, {"1": "source"}, id="source-changed"),
        pytest.param({"1": _covered(side="t")}, {"1": "side"}, id="side-changed"),
        pytest.param({"1": Covered(inputs=(SOURCE,))}, {"1": "side"}, id="no-side"),
        pytest.param({"1": _covered("compacted")}, {}, id="replaced-files"),
    ],
)
def test_missing_partitions_have_a_reason(
    wanted: dict[str, Covered], missing: dict[str, str]
) -> None:
    def is_same(then: Input, now: Input, partition: str | None) -> bool:
        return (now.fingerprint, partition) == ("compacted", "1")

    assert find_missing(wanted, STORED, is_same) == missing


def test_coverage_survives_its_text() -> None:
    assert decode_coverage(encode_coverage(STORED)) == STORED


@pytest.mark.parametrize("text", ["", "x", "~~~", encode_coverage(STORED)[:-9]])
def test_damaged_texts_cover_nothing(text: str) -> None:
    assert decode_coverage(text) is None


def test_many_partitions_take_little_room() -> None:
    days = {f'{{"day":"{day:06d}"}}': _covered(f"{day * 2**40:016x}") for day in range(2_000)}
    assert len(encode_coverage(days)) < 2_000 * 60


def _commit(table: Table) -> None:
    table.append(make_rows(1), snapshot_properties={COVERAGE_PROPERTY: encode_coverage(STORED)})


@pytest.mark.parametrize(
    ("after", "is_kept"),
    [
        pytest.param(lambda table: None, True, id="alone"),
        pytest.param(compact, True, id="compaction"),
        pytest.param(lambda table: table.append(make_rows(2)), False, id="foreign-append"),
        pytest.param(lambda table: table.delete("label = 0"), False, id="foreign-delete"),
    ],
)
def test_foreign_commits_make_the_coverage_invalid(
    create: Callable[..., Table], after: Callable[[Table], None], is_kept: bool
) -> None:
    table = create()
    assert read_coverage(table) == {}
    _commit(table)
    after(table)
    assert read_coverage(table) == (STORED if is_kept else {})
