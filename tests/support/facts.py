"""Checks the facts that a message must hold, such as a field's path and a number, not its words."""

import re
from collections.abc import Sequence

NUMBER = re.compile(r"-?\d+([.,]\d+)*")


def has_fact(text: str, fact: str) -> bool:
    """Return whether a text holds a fact. A number must stand alone, not inside a longer one."""
    if NUMBER.fullmatch(fact):
        return re.search(rf"(?<!\d)(?<!\d[.,]){re.escape(fact)}(?![.,]?\d)", text) is not None
    return fact in text


def find_untold(text: str, facts: str) -> list[str]:
    """Return the facts that a text does not hold.

    Args:
        text: a message.
        facts: field paths, values and numbers, in any order, with `…` between them. The first must
            begin the text, unless a `…` stands before it.
    """
    first, *others = (fact.strip() for fact in facts.split("…"))
    untold = [] if text.startswith(first) else [first]
    return untold + [fact for fact in others if not has_fact(text, fact)]


def assert_told(text: str, facts: str) -> None:
    """Fail unless a text holds these facts."""
    assert find_untold(text, facts) == [], text


def assert_one_tells(texts: Sequence[str], facts: str) -> None:
    """Fail unless one of the texts, such as the lines of a report, holds all of these facts."""
    assert any(find_untold(text, facts) == [] for text in texts), (facts, texts)


def assert_all_told(texts: Sequence[str], facts: Sequence[str]) -> None:
    """Fail unless there is one text for each entry of `facts`, in order, that holds them."""
    assert len(texts) == len(facts), texts
    for text, wanted in zip(texts, facts, strict=True):
        assert_told(text, wanted)
