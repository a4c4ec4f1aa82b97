"""Values of any shape, and documents with such values in a few places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from dataset_operator.documents import Document

WRONG = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 10**30)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "x", "9999-12-31T23:59:59+00:00", "2026-13-01T00:00:00Z", "\x00", "é"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "time", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """List every mapping or list with each of its keys, level by level."""
    level = [value]
    while level:
        below = []
        for holder in level:
            for key, part in holder.items() if isinstance(holder, dict) else enumerate(holder):
                yield holder, key
                if isinstance(part, dict | list):
                    below.append(part)
        level = below


def break_some(data: st.DataObject, documents: list[Document]) -> None:
    """Put anything into a few places; the experiment's metadata stays the API server's."""
    for _ in range(data.draw(st.integers(1, 6), "number")):
        found = list(places(data.draw(st.sampled_from(documents), "document")))
        if not found:
            continue
        # Choose places near the top as often as the many places deep in a template.
        holder, key = data.draw(st.sampled_from(found[:20]) | st.sampled_from(found), "place")
        if data.draw(st.integers(0, 3), "whether it is removed") or isinstance(holder, list):
            holder[key] = data.draw(WRONG, "value")
        else:
            del holder[key]
