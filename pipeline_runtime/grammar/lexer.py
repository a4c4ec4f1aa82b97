"""Cuts the text of an expression into tokens.

Runs before `parser`. Owns the spelling of the language: keywords, operators, quoting, and the bound
on the length of a text.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.grammar.syntax_tree import Span

# Room for an IN list of about a thousand names; longer lists belong in a table and a join.
MAX_TEXT_CHARS = 16 * 1024

# Words that cannot name a bare column; any of them can, in double quotes.
KEYWORDS = frozenset(
    {"and", "or", "not", "in", "between", "is", "null", "like", "true", "false"}
    | {"case", "when", "then", "else", "end", "as"}
)


class TokenKind(enum.Enum):
    """Kind of a token; `KEYWORD` and `SYMBOL` carry their canonical spelling in `value`."""

    NUMBER = "number"
    STRING = "string"
    NAME = "name"
    QUOTED_NAME = "quoted name"
    KEYWORD = "keyword"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One word of the text; `value` has quotes removed and keywords in lower case."""

    kind: TokenKind
    value: str
    span: Span


_PATTERN = re.compile(
    r"""
      (?P<space>   \s+ )
    | (?P<number>  (?: [0-9]+ (?:\.[0-9]*)? | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? )
    | (?P<string>  ' (?: [^'] | '' )* ' )
    | (?P<quoted>  " (?: [^"] | "" )* " )
    | (?P<name>    [^\W\d]\w* )
    | (?P<symbol>  \|\| | == | != | <> | <= | >= | [=<>+\-*/%(),.] )
    """,
    re.VERBOSE,
)

# Spellings that mean the same operator.
_SAME_AS = {"==": "=", "<>": "!="}

# What people type from other languages, and what to write here.
_HINTS = {
    "'": "this string is not closed; add a ' at its end (a ' inside a string is written '')",
    '"': 'this quoted name is not closed; add a " at its end',
    "!": "'!' is no operator; write `not x`, or `!=` to compare",
    "&": "'&' is no operator; write `and`",
    "|": "'|' is no operator; write `or`, or `||` to join strings",
    ";": "an expression has no ';'; remove it",
    "[": "lists are written in parentheses after `in`, and read with list_element(l, i)",
    **dict.fromkeys("\u2018\u2019", "strings stand in straight quotes: 'text'"),
    **dict.fromkeys("\u201c\u201d", 'quoted names stand in straight quotes: "name"'),
}


def tokenize(text: str) -> tuple[Token, ...]:
    """Cut `text` into tokens, the last of kind END.

    Raises ExpressionError at the first character that starts no token, and for a text that is too
    long.
    """
    if len(text) > MAX_TEXT_CHARS:
        message = (
            f"an expression has at most {MAX_TEXT_CHARS} characters, got {len(text)}; split it"
        )
        raise ExpressionError(message, text=text, offset=MAX_TEXT_CHARS)
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            raise _bad_character(text, position)
        position = match.end()
        if match.lastgroup != "space":
            tokens.append(_build_token(text, match))
    tokens.append(Token(kind=TokenKind.END, value="", span=Span(start=len(text), end=len(text))))
    return tuple(tokens)


def _build_token(text: str, match: re.Match[str]) -> Token:
    span, word = Span(start=match.start(), end=match.end()), match.group()
    match match.lastgroup:
        case "string":
            return Token(kind=TokenKind.STRING, value=word[1:-1].replace("''", "'"), span=span)
        case "quoted":
            name = word[1:-1].replace('""', '"')
            return Token(kind=TokenKind.QUOTED_NAME, value=name, span=span)
        case "number":
            _check_number_ends(text, span)
            return Token(kind=TokenKind.NUMBER, value=word, span=span)
        case "name":
            keyword = word.lower() in KEYWORDS
            kind = TokenKind.KEYWORD if keyword else TokenKind.NAME
            return Token(kind=kind, value=word.lower() if keyword else word, span=span)
        case _:
            return Token(kind=TokenKind.SYMBOL, value=_SAME_AS.get(word, word), span=span)


def _check_number_ends(text: str, span: Span) -> None:
    if span.end < len(text) and (text[span.end].isalnum() or text[span.end] in "_."):
        message = "a number ends before a letter or a second point; put a space, or quote the name"
        raise ExpressionError(
            message, text=text, offset=span.start, length=span.end - span.start + 1
        )


def _bad_character(text: str, position: int) -> ExpressionError:
    character = text[position]
    known = _HINTS.get(character)
    message = known or f"{character!r} is not part of the language; remove it or quote the name"
    return ExpressionError(message, text=text, offset=position)
