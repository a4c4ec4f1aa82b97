"""What a message must tell, whatever its words."""

import re
from collections.abc import Sequence

NUMBER = re.compile(r"-?\d+([.,]\d+)*")


def has_fact(text: str, fact: str) -> bool:
    """Whether a text has a fact: a number as a whole, anything else as it stands."""
    if NUMBER.fullmatch(fact):
        return re.search(rf"(?<!\d)(?<!\d[.,]){re.escape(fact)}(?![.,]?\d)", text) is not None
    return fact in text


def find_untold(text: str, facts: str) -> list[str]:
    """Return the facts that a text does not tell.

    Args:
        text: a message.
        facts: what it must hold, in any order, with `…` between: a field's path, a value, a number.
            The first must begin the text, unless a `…` is before it.
    """
    first, *others = (fact.strip() for fact in facts.split("…"))
    untold = [] if text.startswith(first) else [first]
    return untold + [fact for fact in others if not has_fact(text, fact)]


def assert_told(text: str, facts: str) -> None:
    """Fail unless a text tells these facts."""
    assert find_untold(text, facts) == [], text


def assert_one_tells(texts: Sequence[str], facts: str) -> None:
    """Fail unless one of the texts, the lines of a report say, tells all of these facts."""
    assert any(find_untold(text, facts) == [] for text in texts), (facts, texts)


def assert_all_told(texts: Sequence[str], facts: Sequence[str]) -> None:
    """Fail unless there is a text for each of the facts, in their order, and no other."""
    assert len(texts) == len(facts), texts
    for text, wanted in zip(texts, facts, strict=True):
        assert_told(text, wanted)
