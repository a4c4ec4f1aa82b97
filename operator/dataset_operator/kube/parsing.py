"""Parse JSON of the API server, which passes on whatever tenants have stored.

It stores fields without a schema 10,000 levels deep. A parser of fixed depth reads the rest, so no
object ends a watch, a list or a deletion, whatever Python's limit of recursion is.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pydantic_core import from_json

# Deeper than any object that is used: a spec has 64 levels at most, some of them in a list.
# `from_json` refuses more than 200 levels.
MAX_DEPTH: Final = 128
# A string, or a bracket outside of strings. The closing quote is optional, so that the search in a
# broken text is linear too. Possessive quantifiers (`*+`) keep no state for each escape.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
# Its own thread: name resolution in the event loop's pool must not wait for a deep object.
_POOL: Final = ThreadPoolExecutor(1, "parse")


async def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text, with null in place of parts that are nested too deep.

    Raises:
        ValueError: the text is not JSON.
    """
    try:
        return from_json(text)
    except ValueError:
        # Nearly never. It takes half a second per MiB, so the event loop does not wait for it.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_POOL, lambda: from_json(_cut(text)))


def _cut(text: bytes) -> bytes:
    """Replace the lists and mappings below `MAX_DEPTH` with null."""
    kept, depth, start = list[bytes](), 0, 0
    for token in _TOKEN.finditer(text):
        mark = text[token.start()]
        if mark in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept += [text[start : token.start()], b"null"]
        elif mark in b"]}":
            if depth == MAX_DEPTH + 1:
                start = token.end()
            depth -= 1
    return b"".join([*kept, text[start:]])
