"""Large valid specs, one shape for each way to make a spec large.

Some values of a shape are random; the same seed gives the same values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from random import Random
from string import ascii_lowercase
from typing import Any

Spec = dict[str, Any]

# Kubernetes stores objects of up to 1.5 MiB. The tests relate work to the number of values, so a
# smaller spec shows as much in less time.
MOST_BYTES = 200_000
MOST_FREE_BYTES = 65_536
MOST_STEPS = 256
MOST_ITEMS = 256  # of env, pip and the like
MOST_COLUMNS = 4096
_NAMES = ["".join(letters) for letters in product(ascii_lowercase, repeat=3)]
_LONG_EXPRESSION = "a" + " and a" * 2_700
# Texts that are, or once were, expensive to search for credentials.
_RUNS = ("eyJ-", "eyJ.", "?a;", "a://", "-----BEGIN ", "hf-", "AKIA", "0", "é", " ", "[[")


def _columns(random: Random, number: int = MOST_COLUMNS) -> list[str]:
    return random.sample(_NAMES, number)


def _text(random: Random, num_bytes: int) -> str:
    unit = random.choice(_RUNS)
    return unit * (num_bytes // len(unit.encode()))


def _fill(most_bytes: int, most: int, make: Callable[[int], Any]) -> list[Any]:
    """Make as many items as fit."""
    items: list[Any] = []
    left = most_bytes
    for index in range(most):
        item = make(index)
        left -= len(json.dumps(item)) + 2
        if left < 0:
            break
        items.append(item)
    return items


def _steps(make: Callable[[], Spec]) -> Spec:
    return {"pipeline": _fill(MOST_BYTES, MOST_STEPS, lambda _: make())}


def _config(value: Any) -> Spec:
    return {"training": {"config": {"a": value}}}


def _pod(list_field: str, make: Callable[[int], Spec]) -> Spec:
    items = _fill(MOST_FREE_BYTES - 1_000, MOST_FREE_BYTES, make)
    return {"head": {"template": {"spec": {list_field: items}}}}


def _container(list_field: str, make: Callable[[int], Spec]) -> Spec:
    items = _fill(MOST_FREE_BYTES - 1_000, MOST_FREE_BYTES, make)
    ray = {"name": "ray", list_field: items}
    return {"trainers": {"template": {"spec": {"containers": [ray]}}}}


def _named(names: Sequence[str], field: str, value: Any) -> list[Spec]:
    return [{"name": name, field: value} for name in names]


def _build_renames(random: Random) -> Spec:
    names = zip(_columns(random), _NAMES, strict=False)
    return {"rename": {"columns": [{"name": old, "newName": new} for old, new in names]}}


def _build_constants(random: Random) -> Spec:
    return {"fillNull": {"columns": _named(_columns(random), "value", f"{random.random():.6f}")}}


def _build_variable(random: Random, index: int) -> Spec:
    return {"name": f"V{index}", "value": _text(random, 800)}


SHAPES: dict[str, Callable[[Random], Spec]] = {
    "empty lists": lambda _: _config([[]] * (MOST_FREE_BYTES // 4)),
    "numbers": lambda random: _config([random.randrange(10)] * (MOST_FREE_BYTES // 4)),
    "mappings": lambda _: _config({str(index): {} for index in range(6_000)}),
    "a text": lambda random: _config(_text(random, MOST_FREE_BYTES // 2)),
    "options of maps": lambda _: {
        "pipeline": [{"map": {"function": "a:b", "options": {"a": [0] * 80}}}] * MOST_STEPS
    },
    "tolerations": lambda _: _pod("tolerations", lambda index: {"key": f"k{index}"}),
    "equal tolerations": lambda _: _pod("tolerations", lambda _: {"key": "k"}),
    "volumes": lambda _: _pod("volumes", lambda index: {"name": f"v{index}"}),
    "containers": lambda _: _pod("containers", lambda index: {"name": f"c{index}"}),
    "variables of a container": lambda _: _container("env", lambda index: {"name": f"V{index}"}),
    "ports": lambda _: _container("ports", lambda index: {"containerPort": 20_000 + index}),
    "variables": lambda random: {
        "env": [_build_variable(random, index) for index in range(MOST_ITEMS)]
    },
    "packages": lambda random: {"code": {"pip": [_text(random, 1_000)] * MOST_ITEMS}},
    "many small steps": lambda _: {"pipeline": [{"drop": {"columns": ["a"]}}] * MOST_STEPS},
    "renames": lambda random: _steps(lambda: _build_renames(random)),
    "selections": lambda random: _steps(lambda: {"select": {"columns": _columns(random)}}),
    "casts": lambda random: _steps(
        lambda: {"cast": {"columns": _named(_columns(random), "type", "int64")}}
    ),
    "constants": lambda random: _steps(lambda: _build_constants(random)),
    "many expressions": lambda random: _steps(
        lambda: {"derive": {"columns": _named(_columns(random), "expression", "a")}}
    ),
    "long expressions": lambda random: _steps(
        lambda: {"derive": {"columns": _named(_columns(random, 2), "expression", _LONG_EXPRESSION)}}
    ),
    "files": lambda _: {
        "dataset": {"parquet": {"uris": [f"s3://bucket/{i:08}.parquet" for i in range(5_000)]}}
    },
}


def count_values(value: Any) -> int:
    """Return the number of values in a document; 32 characters of a text count as one more."""
    if isinstance(value, dict):
        return 1 + sum(count_values(key) + count_values(below) for key, below in value.items())
    if isinstance(value, list):
        return 1 + sum(map(count_values, value))
    return 1 + len(value) // 32 if isinstance(value, str) else 1
