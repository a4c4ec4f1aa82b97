"""A stage: rules that are independent of each other, and the place of them among the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import NamedTuple

from dataset_operator.plan.situation import Rule, Situation
from dataset_operator.plan.verdict import Verdict


class Stage(NamedTuple):
    """Rules that are independent of each other: each sees what the stages before decided.

    Attributes:
        is_closing: whether the rules also judge a pass that an earlier stage has ended.
    """

    name: str
    rules: tuple[Rule, ...]
    is_closing: bool = False

    def find_verdicts(self, situation: Situation) -> Iterator[Verdict]:
        """Yield what the rules decide, if the pass gets to this stage."""
        if self.is_closing or not situation.is_decided:
            found = (rule(situation) for rule in self.rules)
            yield from (verdict for verdict in found if verdict is not None)

    def judge(self, situation: Situation) -> Situation:
        """Return the situation that the next stage sees."""
        verdicts = list(self.find_verdicts(situation))
        return situation.after(reduce(add, verdicts)) if verdicts else situation
