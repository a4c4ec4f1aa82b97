"""Write the generated files of charts/lastmile: `make crd` and `make chart` do it.

The schema of the settings comes from the operator's model, the table of values in the chart's
README from the comments in values.yaml, the dashboards from `tools.dashboards`. Helm reads nothing
outside a chart's folder, so the CRD, the alerts and the dashboards are in it; crds/ and deploy/
link to them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dataset_operator.settings import OperatorSettings
from tools.dashboards import panels
from tools.dashboards.experiment import EXPERIMENT
from tools.dashboards.fleet import FLEET

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "lastmile"
VALUES, SCHEMA, README = CHART / "values.yaml", CHART / "values.schema.json", CHART / "README.md"
BOARDS, BOARDS_FOLDER = (FLEET, EXPERIMENT), CHART / "files" / "grafana"
TABLE_BEGIN, TABLE_END = "<!-- by `make chart` -->\n", "<!-- end -->\n"
_DEFS = "$defs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of the chart that can be set: a leaf of values.yaml.

    Attributes:
        path: such as `image.operator.tag`.
        default: its value in values.yaml.
        text: the comment above it.
    """

    path: str
    default: Any
    text: str


def read_values(text: str) -> list[Value]:
    """Return the leaves of values.yaml; a mapping in braces is one.

    Raises:
        ValueError: a leaf has no comment above it.
    """
    node = yaml.compose(text)
    assert isinstance(node, yaml.MappingNode), "values are a mapping"
    return [*_walk(node, text.splitlines(), "")]


def _walk(node: yaml.MappingNode, lines: list[str], above: str) -> Iterator[Value]:
    for key, value in node.value:
        path = f"{above}{key.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _walk(value, lines, f"{path}.")
            continue
        comment = lines[key.start_mark.line - 1].strip()
        if not comment.startswith("# "):
            raise ValueError(f"{VALUES.name}: {path} must have a comment above it, has none")
        default = yaml.safe_load(yaml.serialize(value))
        yield Value(path=path, default=default, text=comment.removeprefix("# "))


def render_table(values: list[Value]) -> str:
    """Return the table of the chart's README."""
    rows = (
        f"| `{value.path}` | `{json.dumps(value.default)}` | {value.text} |\n" for value in values
    )
    return "| value | default | what |\n|---|---|---|\n" + "".join(rows)


def render_readme(text: str, values: list[Value]) -> str:
    """Return the README with its table replaced by that of these values."""
    before, _, rest = text.partition(TABLE_BEGIN)
    _, _, after = rest.partition(TABLE_END)
    return f"{before}{TABLE_BEGIN}{render_table(values)}{TABLE_END}{after}"


def build_settings_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of `settings`, and the definitions that it refers to.

    The runtime image is not required: the chart has a default.
    """
    schema = _without_titles(OperatorSettings.model_json_schema(by_alias=True))
    definitions: dict[str, Any] = schema.pop(_DEFS)
    del schema["required"]
    return schema, definitions


def _without_titles(schema: Any) -> Any:
    """Drop pydantic's titles, which repeat the names."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        word: _without_titles(value)
        for word, value in schema.items()
        if not (word == "title" and isinstance(value, str))
    }


def render_schema(text: str) -> str:
    """Return values.schema.json with the present schema of the settings."""
    schema = json.loads(text)
    settings, definitions = build_settings_schema()
    schema["properties"]["settings"] = settings
    schema[_DEFS] = definitions
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def render_files() -> Mapping[Path, str]:
    """Return the generated files of the chart, by their paths."""
    values = read_values(VALUES.read_text(encoding="utf-8"))
    return {
        SCHEMA: render_schema(SCHEMA.read_text(encoding="utf-8")),
        README: render_readme(README.read_text(encoding="utf-8"), values),
        **{BOARDS_FOLDER / f"{board.name}.json": panels.render(board) for board in BOARDS},
    }


def main() -> None:
    """Write the files."""
    files = render_files()
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    print(f"wrote {len(files)} files of {CHART.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
