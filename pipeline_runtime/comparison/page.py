"""The page of a comparison, a single file that needs no network.

`figures` draws its pictures and `view` has its tables.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from markupsafe import Markup

from pipeline_runtime.comparison import figures
from pipeline_runtime.comparison.gathering import Gathered
from pipeline_runtime.comparison.model import Comparison
from pipeline_runtime.comparison.view import build_tables
from pipeline_runtime.config import DISTRIBUTION
from pipeline_runtime.files import write_atomically
from pipeline_runtime.report.templating import build_environment

_TEMPLATE = "compare.html.j2"


def write_page(path: Path, comparison: Comparison, gathered: Gathered) -> None:
    """Write the page of a comparison.

    Raises:
        StoreError: a metrics history cannot be read.
        OSError: the file cannot be written.
    """
    environment = build_environment("pipeline_runtime.comparison")
    # Only for SVG from `figures`, which escapes all texts in it.
    environment.filters["drawn"] = Markup
    page = environment.get_template(_TEMPLATE).render(
        comparison=comparison,
        tables=build_tables(comparison),
        intervals=figures.draw_intervals(comparison),
        curves=figures.draw_curves(gathered.variants),
        colours=[figures.choose_colour(index) for index in range(len(comparison.variants))],
        version=importlib.metadata.version(DISTRIBUTION),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
