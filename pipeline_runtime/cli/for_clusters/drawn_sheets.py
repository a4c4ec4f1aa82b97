"""Pages for commands of other packages, which know nothing of how a page is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_sheet(path: Path, document: Mapping[str, Any], beside: Mapping[str, str]) -> Path:
    """Write a page of tiles, charts and a table, and texts beside it; the page's path.

    Args:
        document: as `pipeline_runtime.report.sheet.Sheet` has it.
        beside: texts by the name of their file.
    """
    from pipeline_runtime.files import write_atomically
    from pipeline_runtime.report.sheet import Sheet, build_sheet

    page = build_sheet(Sheet.model_validate(document))
    for name, text in beside.items():
        write_atomically(path.with_name(name), text + "\n")
    write_atomically(path, page)
    return path
