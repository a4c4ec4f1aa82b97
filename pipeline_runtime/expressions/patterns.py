"""Kernels that match a string against a constant: `like`, `contains`, regular expressions.

Used by `binder` and `functions.text`. All run in linear time: fixed parts by substring search, the
rest by RE2.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.expressions.plan import Kernel


def build_like(pattern: str) -> Kernel:
    """The kernel of `like 'pattern'`: `%` is any run of characters, `_` any one; no escape."""
    body = pattern.strip("%")
    if "%" in body or "_" in body or not body:
        regex = rf"(?s)\A{''.join(_translate(character) for character in pattern)}\z"
        return partial(pc.match_substring_regex, pattern=regex)
    if pattern == body:
        return lambda strings: pc.equal(strings, pa.scalar(body, strings.type))
    if not pattern.startswith("%"):
        return partial(pc.starts_with, pattern=body)
    if not pattern.endswith("%"):
        return partial(pc.ends_with, pattern=body)
    return partial(pc.match_substring, pattern=body)


def _translate(character: str) -> str:
    if character == "%":
        return ".*"
    if character == "_":
        return "."
    if character.isascii() and not character.isalnum():
        return rf"\x{{{ord(character):x}}}"
    return character


def build_regex(pattern: str) -> Kernel:
    """The kernel of `regexp_match`; raises ValueError for a pattern that RE2 does not take."""
    kernel = partial(pc.match_substring_regex, pattern=pattern)
    try:
        kernel(pa.array(["probe"]))
    except pa.ArrowInvalid as error:
        message = f"must be a regular expression of RE2, got {pattern!r} ({error})"
        raise ValueError(message) from error
    return kernel
