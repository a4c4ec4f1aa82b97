"""The syntax of prompt templates: text with columns in braces, `"Tag: {title}"`.

`{{` and `}}` are a single brace each. `steps.generate` renders the parts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_COLUMN = r"\{[^{}]+\}"
_PART = rf"([^{{}}]|\{{\{{|\}}\}}|{_COLUMN})"
# A template as a pattern, for the API server.
TEMPLATE_PATTERN = f"^{_PART}*{_COLUMN}{_PART}*$"
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class TemplateError(ValueError):
    """A text is no prompt template."""


class TemplatePart(NamedTuple):
    """A part of a template: the name of a column, or a text that is the same in each prompt."""

    text: str
    is_column: bool


def parse_template(text: str) -> tuple[TemplatePart, ...]:
    """Return the parts of a template, in order.

    Raises TemplateError if a brace has no partner, a name is empty, or there is no column.
    """
    parts, fixed, end = list[TemplatePart](), "", 0
    for match in _TOKEN.finditer(text):
        fixed, end = fixed + text[end : match.start()], match.end()
        found, name = match.group(), match.group(1)
        if found in ("{{", "}}"):
            fixed += found[0]
        elif name:
            parts += [TemplatePart(fixed, False), TemplatePart(name, True)]
            fixed = ""
        elif name == "":
            raise TemplateError(f"must name a column in {{}}, but at {match.start()} has none")
        else:
            raise TemplateError(
                f"must have columns in braces, but the {found!r} at {match.start()} has no "
                f"partner; write {found * 2!r} for a brace"
            )
    parts.append(TemplatePart(fixed + text[end:], False))
    if len(parts) == 1:
        raise TemplateError("must name at least one column in braces, as in 'Tag: {title}'")
    return tuple(part for part in parts if part.text)
