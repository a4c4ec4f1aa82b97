"""Runs the Python of the docs, so that a test proves what they say."""

import re
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def run_documented(page: str, section: str, **names: Any) -> dict[str, Any]:
    """Run the Python blocks of a section of a page; return the names that they define.

    Args:
        page: file name below docs/.
        section: its heading, of the second level.
        names: what the blocks take as given, such as imports.
    """
    defined: dict[str, Any] = dict(names)
    exec(read_documented(page, section), defined)
    return defined


def read_documented(page: str, section: str) -> str:
    """Return the Python blocks of a section of a page, one after another."""
    text = (DOCS / page).read_text(encoding="utf-8")
    [_, rest] = text.split(f"\n## {section}\n")
    blocks = re.findall(r"^```python\n(.*?)^```", rest.split("\n## ")[0], re.M | re.S)
    assert blocks, f"{page}: {section} has no Python"
    return textwrap.dedent("\n".join(blocks))
