"""The fields of the manifest by which a reader of a list of runs tells their variants apart.

Runs of one experiment share its name. The list shows for each run those fields whose values are not
the usual ones: those that most of the listed runs of its experiment have. `compare` shows all
differences in full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline_runtime.config.identity.run_hash import compare_configs
from pipeline_runtime.runs.listing import ListedRun

# Repeats differ in their seed, which the list shows anyway; the root only says where a run was.
_LEFT_OUT = ("training.seed", "storage.root")
_MAX_FIELDS = 3
_MAX_CHARS = 32  # of a field and its value


def describe_variants(runs: Sequence[ListedRun]) -> list[str]:
    """Return a text such as `keepPercent=50, hidden=64` for each run; empty if all is as usual.

    Args:
        runs: the newest first. If two values are equally frequent, that of the older run is usual.
    """
    specs: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run.spec:
            specs.setdefault(run.experiment, []).append(run.spec)
    texts = {name: iter(_describe(each)) for name, each in specs.items()}
    return [next(texts[run.experiment]) if run.spec else "" for run in runs]


def _describe(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    fields: list[list[str]] = [[] for _ in specs]
    for path, values in compare_configs(specs):
        if path in _LEFT_OUT:
            continue
        [(usual, _)] = Counter(reversed(values)).most_common(1)
        for texts, value in zip(fields, values, strict=True):
            if value != usual:
                texts.append(_shorten(f"{path.rpartition('.')[2]}={value}"))
    return [", ".join(_limit(texts)) for texts in fields]


def _limit(texts: list[str]) -> list[str]:
    return texts if len(texts) <= _MAX_FIELDS else [*texts[:_MAX_FIELDS], "…"]


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"
