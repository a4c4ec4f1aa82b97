"""Valid manifests, broken in one place or several: as many as wanted, the same for the same seed.

Places are taken in turn, so that every field of the schema is broken alike often; how, is drawn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
SAMPLES = (
    ROOT / "deploy" / "samples" / "quickstart.yaml",
    ROOT / "deploy" / "samples" / "cluster.yaml",
    ROOT / "tests" / "corpus" / "whole" / "data-side.yaml",
)
Document = dict[str, Any]
Place = tuple[str | int, ...]

# What is larger is refused before anybody looks into it: by `lastmile`, by the API server.
MOST_CHARS = 1_000_000
MOST_AT_ONCE = 4  # of breaks in one document
# Kubernetes' JSON goes 10,000 deep; Python's own calls, a tenth of it.
DEPTHS = (3, 70, 300, 3_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A document that was broken, and how, in words."""

    document: Document
    how: tuple[str, ...]


def load_samples() -> list[Document]:
    """The documents that are broken; all are valid."""
    return [
        document for path in SAMPLES for document in yaml.safe_load_all(path.read_text("utf-8"))
    ]


def generate(seed: int, number: int) -> Iterator[Broken]:
    """So many broken documents. That one of them is valid all the same is possible, and seldom."""
    random, samples = Random(seed), load_samples()
    spots = [
        (index, place)
        for index, sample in enumerate(samples)
        for place in walk(sample)
        if place[:1] in (("spec",), ("metadata",))
    ]
    random.shuffle(spots)
    for turn in range(number):
        index, place = spots[turn % len(spots)]
        while True:
            document = copy.deepcopy(samples[index])
            how = [_break(random, document, place)]
            for _ in range(random.choice((0, 0, 0, 1, MOST_AT_ONCE - 1))):
                how.append(_break(random, document, random.choice(list(walk(document)))))
            if document != samples[index] and _num_chars(document) < MOST_CHARS:
                yield Broken(document=_unfold(document), how=tuple(how))
                break


def _num_chars(value: Any) -> int:
    """About as many as its JSON has."""
    if isinstance(value, dict):
        return sum(len(key) + 6 + _num_chars(below) for key, below in value.items())
    if isinstance(value, list):
        return sum(1 + _num_chars(below) for below in value)
    return len(value) + 2 if isinstance(value, str) else 4


def walk(value: Any, place: Place = ()) -> Iterator[Place]:
    """Places of everything in a document, but for the document itself."""
    items: Any = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, below in items:
        yield (*place, key)
        yield from walk(below, (*place, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nested:
    """A deeply nested value before it is built: recursion cannot build it."""

    depth: int
    as_list: bool

    def unfold(self) -> Any:
        value: Any = 0
        for _ in range(self.depth):
            value = [value] if self.as_list else {"a": value}
        return value


def _nested(random: Random) -> _Nested:
    return _Nested(depth=random.choice(DEPTHS), as_list=random.random() < 0.5)


def _unfold(document: Document) -> Document:
    for place in list(walk(document)):
        above = _above(document, place)
        if isinstance(above[place[-1]], _Nested):
            above[place[-1]] = above[place[-1]].unfold()
    return document


def _number(random: Random) -> Any:
    known = (0, -1, 1, 101, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e-300, 1e300)
    return random.choice((*known, 7.0, random.randint(-(10**6), 10**6), random.random()))


def _text(random: Random) -> str:
    long = random.choice((257, 1_025, 16_385, 100_000))
    odd = (
        *("", " ", "\n", "\x00", "a\x1b[31mred", "\u202egnp.exe", "\ufeff", "ä\u0308" * 40, "🐘"),
        *("a\nb: c", "{{ x }}", "${HOME}", "$(rm -rf /)", "'; drop table x; --", "%s%n", "<b>"),
        *("x" * long, "é" * long, "[" * long, " " * long, "\\" * long, "a." * long, "-" * long),
        *("true", "1", "null", "~", "0x1F", "1_000", "1e3", "NaN", "Infinity", "-inf"),
        *("../../etc/passwd", "a/../b", "s3://key:word@bucket/", "https://h/?token=x", "file:///"),
        *("AKIA" + "A" * 16, "_lastmile_x", "Max", "a b", "1st", "x.y", "x:y", "ä:b", "a:b:c"),
    )
    return random.choice(odd)


def _expression(random: Random) -> str:
    deep = random.choice((10, 70, 5_000))
    odd = (
        *("a >", "a and or b", "(a", "a)", "'open", '"open', "a = = b", "not", "a in ()", "1 2"),
        *("case end", "cast(a as)", "cast(a as nothing)", "nothing(a)", "a between 1", "@", "a;b"),
        *("date 'x'", "timestamp '2026-99-99'", "9" * 400, "1e999", "a" * 16_384, "a is", "-"),
        *("(" * deep + "a" + ")" * deep, "not " * deep + "a", "-" * deep + "1", "a." * deep + "b"),
        *(" and ".join(["a"] * 2_000), "f(" * deep, "\u2028a", "a\x00b", "a -- b", "like 'x'"),
    )
    return random.choice(odd)


def _quantity(random: Random) -> Any:
    odd = ("8 Gi", "-1", "1Q", "Gi", "1e100", "0x1", "1,5", "١", "9" * 30, "1" * 19, -1, 0, "0.1m")
    return random.choice(odd)


def _collection(random: Random) -> Any:
    odd: tuple[Any, ...] = (
        *([], {}, [None], [[]], [{}], ["a", "a"], ["x"] * 4_097, {"": 1}, {"a": None}, {"a": {}}),
        *({f"k{index}": index for index in range(4_097)}, [1] * 4_097, {"x" * 300: "y"}),
        *({"parquet": {"uri": "x/"}}, {"columns": ["a"]}, {"uri": "x/", "uris": ["y/"]}),
        *({"name": "A"}, {"password": "x"}, {"cpu": "2"}, {"a\nb": 1}, {"a.b[0]": 1}, {"🐘": 1}),
    )
    return copy.deepcopy(random.choice(odd))


def _odd(random: Random) -> Any:
    makers: tuple[Callable[[Random], Any], ...] = (
        *(_number, _text, _text, _expression, _quantity, _collection, _nested),
        *(lambda _: None, lambda random: random.random() < 0.5),
    )
    return random.choice(makers)(random)


def _of_its_kind(random: Random, place: Place, value: Any) -> Any:
    """Return a wrong value that has the right type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return _number(random)
    if isinstance(value, str):
        is_expression = place[-1] in ("where", "by") or "derive" in place
        return _expression(random) if is_expression else _text(random)
    return _collection(random)


def _above(document: Document, place: Place) -> Any:
    found: Any = document
    for part in place[:-1]:
        found = found[part]
    return found


def _break(random: Random, document: Document, place: Place) -> str:
    """Break what is at a place; returns what was done."""
    above, key = _above(document, place), place[-1]
    value = above[key]
    acts = ["kind", "kind", "odd", "odd", "remove", "swap", "quantity"]
    acts += ["misspell"] * isinstance(above, dict)
    acts += ["unknown"] * isinstance(value, dict) + ["beside"] * isinstance(value, dict)
    acts += ["repeat"] * isinstance(above, list) + ["repeat", "many"] * isinstance(value, list)
    act = random.choice(acts)
    if act == "remove":
        del above[key]
    elif act == "misspell":
        above[_misspell(random, str(key))] = above.pop(key)
    elif act == "unknown":
        value[_text(random) if random.random() < 0.3 else "replica"] = _odd(random)
    elif act == "beside":  # what exists, but elsewhere, or not beside the others
        other = random.choice(list(walk(document)))
        value[str(other[-1])] = copy.deepcopy(_above(document, other)[other[-1]])
    elif act == "repeat":
        items = value if isinstance(value, list) else above
        items.extend(copy.deepcopy(items[-1:]))
    elif act == "many":
        value.extend(copy.deepcopy(value[:1]) * random.choice((300, 5_000)))
    elif act == "swap":
        other = random.choice(list(walk(document)))
        above[key] = copy.deepcopy(_above(document, other)[other[-1]])
    else:
        makers = {"odd": _odd, "quantity": _quantity}
        above[key] = makers[act](random) if act in makers else _of_its_kind(random, place, value)
    return f"{act} at {'.'.join(map(str, place))}"


def _misspell(random: Random, word: str) -> str:
    at = random.randrange(len(word)) if word else 0
    wrong = (word.swapcase(), word[:at] + word[at + 1 :], word + "s", f"{word} ", word + word)
    return random.choice(wrong)
