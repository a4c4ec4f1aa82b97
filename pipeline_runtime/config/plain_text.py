"""Texts of others, such as a user's log or status, as a reader's terminal may have them."""

from __future__ import annotations

import re

# Control sequences as Ray and others colour their tracebacks with (ECMA-48, 5.4).
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def clean(text: str) -> str:
    """Return the text without what would move, colour or rename a reader's terminal."""
    if text.isprintable():
        return text
    plain = _COLOURS.sub("", text)
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in plain)
