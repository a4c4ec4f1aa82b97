"""The committed dashboards are those of the source, and Grafana's schema takes them whole."""

from __future__ import annotations

import copy
import enum
import importlib
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tools.chart import BOARDS, BOARDS_FOLDER
from tools.dashboards.panels import GRID_COLUMNS, Board, render

ROOT = Path(__file__).parents[3]
# What Prometheus' annotations have beside the schema's fields (packages/grafana-prometheus).
OF_PROMETHEUS = {"step", "titleFormat", "textFormat", "useValueForTime"}
register_default_plugins()  # without them queries stay what they are

boards = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)


def read(board: Board) -> dict[str, Any]:
    """The committed file without what the schema leaves to the data source."""
    document: dict[str, Any] = json.loads((BOARDS_FOLDER / f"{board.name}.json").read_text())
    for annotation in document.get("annotations", {}).get("list", ()):
        for field in OF_PROMETHEUS & set(annotation):
            del annotation[field]
    return document


def is_of(value: Any, hint: Any) -> bool:
    """Return whether a value is of a type of the schema."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(is_of(value, arg) for arg in args)
    if origin is Literal:
        return value in args
    if origin is list:
        return isinstance(value, list) and all(is_of(item, args[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(is_of(item, args[1]) for item in value.values())
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in [member.value for member in hint]
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint in (object, Any):
        return True
    if isinstance(value, dict) and hasattr(hint, "from_json"):  # the SDK leaves some unread
        return bool(json.loads(JSONEncoder().encode(hint.from_json(value))) == value)
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))


def find_misfits(value: Any, path: str = "") -> Iterator[str]:
    """Fields of a parsed document, and of what is in it, whose values are of another type."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_misfits(item, f"{path}[{index}]")
    if not type(value).__module__.startswith("grafana_foundation_sdk.models"):
        return
    module = importlib.import_module(type(value).__module__)
    for name, hint in get_type_hints(type(value), vars(module)).items():
        if not is_of(getattr(value, name), hint):
            yield f"{path}.{name}: {getattr(value, name)!r}"
        yield from find_misfits(getattr(value, name), f"{path}.{name}")


def judge(document: dict[str, Any]) -> list[str]:
    """Return why Grafana's schema refuses a dashboard."""
    parsed = Dashboard.from_json(copy.deepcopy(document))
    known = json.loads(JSONEncoder().encode(parsed))
    return [*find_misfits(parsed), *(["unknown fields"] if known != document else [])]


@boards
def test_the_file_is_what_the_source_gives(board: Board) -> None:
    text = (BOARDS_FOLDER / f"{board.name}.json").read_text()
    assert text == render(board), "run: make chart"


def test_there_is_no_other_file() -> None:
    written = {path.name for path in BOARDS_FOLDER.iterdir()}
    assert written == {f"{board.name}.json" for board in BOARDS}


@boards
def test_grafanas_schema_takes_it(board: Board) -> None:
    assert judge(read(board)) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        pytest.param(("headline",), "x", id="a field that there is not"),
        pytest.param(("panels", 1, "gridPos", "width"), 3, id="one further in"),
        pytest.param(("panels", 1, "targets", 0, "expression"), "up", id="one of a query"),
        pytest.param(("title",), 3, id="a number for a text"),
        pytest.param(("panels", 1, "gridPos", "w"), "3", id="a text for a number"),
        pytest.param(("templating", "list", 0, "type"), "sourcedata", id="no word of Grafana's"),
    ],
)
def test_the_schema_refuses_what_is_wrong(place: tuple[Any, ...], value: Any) -> None:
    document = inner = read(BOARDS[0])
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    assert judge(document) != []


@boards
def test_panels_fill_the_grid_and_do_not_overlap(board: Board) -> None:
    document = read(board)
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        grid = panel["gridPos"]
        cells = {
            (grid["x"] + column, grid["y"] + line)
            for column in range(grid["w"])
            for line in range(grid["h"])
        }
        assert max(column for column, _ in cells) < GRID_COLUMNS
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in document["panels"]]
    assert sorted(ids) == [*range(1, len(ids) + 1)]


@boards
def test_every_panel_says_what_it_shows(board: Board) -> None:
    titles = [panel.title for panel in board.panels]
    assert len(set(titles)) == len(titles)
    for panel in board.panels:
        assert panel.description, panel.title
        assert panel.queries, panel.title
        named = [query.legend for query in panel.queries]
        assert all(named) or panel.kind == "stat", panel.title
