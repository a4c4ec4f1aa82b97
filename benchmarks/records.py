"""Records of a benchmark: how it was run, and its results as JSON, page and picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Beginning

__all__ = ["Beginning", "Document", "print_results", "write_results"]

Document = dict[str, Any]


def write_results(
    name: str,
    results: Document,
    folder: Path,
    *,
    build_markdown: Callable[[Document], str],
    draw: Callable[[Document, Path], None],
) -> str:
    """Write NAME.json, .md and .svg into a folder, which is made if missing; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    text = build_markdown(results)
    (folder / f"{name}.json").write_text(_format(results))
    (folder / f"{name}.md").write_text(text)
    draw(results, folder / f"{name}.svg")
    return text


def print_results(
    name: str,
    results: Document,
    folder: Path,
    build_markdown: Callable[[Document], str],
    draw: Callable[[Document, Path], None],
) -> None:
    """Write the files of `write_results`, and print the page."""
    print(write_results(name, results, folder, build_markdown=build_markdown, draw=draw))


def _format(results: Document) -> str:
    """Return JSON with one field per line, and one row per line of the long list `rows`."""
    rows = results.get("rows")
    if not isinstance(rows, list):
        return json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    rest = json.dumps(results | {"rows": []}, indent=1, ensure_ascii=False)
    return rest.replace('"rows": []', f'"rows": [\n{lines}\n ]') + "\n"
