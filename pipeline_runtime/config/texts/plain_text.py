"""Makes other people's text, such as a user's log or status, safe to print on a terminal."""

from __future__ import annotations

import re

# Control sequences, with which Ray and others colour their tracebacks (ECMA-48, 5.4).
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def clean(text: str) -> str:
    """Return the text without control characters, which can move, colour or rename a terminal."""
    if text.isprintable():
        return text
    plain = _COLOURS.sub("", text)
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in plain)
