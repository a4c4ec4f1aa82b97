"""The chart's generated files are up to date, and each of its values is described."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from dataset_operator.settings import OperatorSettings, parse_settings
from tools.chart import (
    CHART,
    ROOT,
    SCHEMA,
    VALUES,
    build_settings_schema,
    read_values,
    render_files,
)

FILES = render_files()
CHECKED: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
# Free maps and maps of a few known keys, which values.yaml gives in braces.
IN_BRACES = {"resources", "podSecurityContext", "containerSecurityContext"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_chart_is_what_make_chart_writes(path: Any) -> None:
    assert path.read_text(encoding="utf-8") == FILES[path], "run make chart and commit charts/"


@pytest.mark.parametrize("folder", ["crds", "deploy/grafana", "deploy/prometheus"])
def test_files_outside_the_chart_are_links_into_it(folder: str) -> None:
    given = {path.resolve() for path in (ROOT / folder).iterdir()}
    assert given == {*(CHART / "files" / Path(folder).name).iterdir()}


def leaves(schema: dict[str, Any], above: str = "") -> Iterator[str]:
    """Paths of what the schema lets be set, settings aside."""
    for name, below in schema["properties"].items():
        path = f"{above}{name}"
        if "properties" in below and name not in IN_BRACES | {"settings"}:
            assert below["additionalProperties"] is False, path
            yield from leaves(below, f"{path}.")
        else:
            yield path


def test_the_schema_knows_the_values_and_no_others() -> None:
    given = [value.path for value in read_values(VALUES.read_text(encoding="utf-8"))]
    assert given == [path for path in leaves(CHECKED) if path != "global"]  # helm's own
    assert CHECKED["additionalProperties"] is False


def test_the_values_meet_their_own_schema() -> None:
    Draft202012Validator.check_schema(CHECKED)
    Draft202012Validator(CHECKED).validate(yaml.safe_load(VALUES.read_text(encoding="utf-8")))


def test_a_value_without_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.b .*comment"):
        read_values("a:\n  # said\n  c: 1\n  b: 2\n")


def test_every_setting_of_the_operator_is_one_of_the_chart() -> None:
    settings, definitions = build_settings_schema()
    names = {field.alias for field in OperatorSettings.model_fields.values()}
    assert set(settings["properties"]) == names
    models = [settings, *definitions.values()]
    assert all(model["additionalProperties"] is False for model in models)


WRONG: dict[str, dict[str, Any]] = {
    "a name that does not exist": {"runtimeImag": "x"},
    "a word in the place of a number": {"sharedMemoryPercent": "much"},
    "a number above its maximum": {"sharedMemoryPercent": 96},  # 95 is the last
    "a choice that there is not": {"metrics": {"source": "guess"}},
    "a price without its other half": {"prices": {"gpuHour": 2.5}},
}


@pytest.mark.parametrize("settings", WRONG.values(), ids=WRONG)
def test_what_the_operator_refuses_the_chart_refuses_before(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        parse_settings({"runtimeImage": "image", **settings})
    found = list(Draft202012Validator(CHECKED).iter_errors({"settings": settings}))
    assert found
    assert all(error.absolute_path[0] == "settings" for error in found)
