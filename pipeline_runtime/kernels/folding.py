"""A page's lists without those that repeat; `whole_chunks` calls it.

Flat rows of a request carry the same lists, one after another: told here, on the page's bytes, they
are copied once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pipeline_runtime.kernels.intrinsics import copy_bytes, load_word


@numba.njit
def fold(
    data: Any,
    width: int,
    starts: Any,
    lists: Any,
    out: Any,
    out_starts: Any,
    out_lists: Any,
    codes: Any,
    state: Any,
) -> int:
    """Write a page's lists without those that are equal to the one before, byte by byte.

    The first and the last of a page are always written: they may be parts of longer ones.

    Args:
        data: the page's items, all of them valid, of `width` bytes.
        starts: where each list's items start, and where the last one's end.
        lists: which lists are valid; without any, all are.
        out, out_starts, out_lists: written: items, and of each list where it starts and whether it
            is valid.
        codes: written: for each row of the chunk the list that it is.
        state: rows, lists and items so far, which it goes on counting.

    Returns:
        0, or -1 if the first items are of a list that never started.
    """
    num_rows, num_lists, num_items = state
    num_starts = len(starts) - 1
    if starts[0] > 0 and num_lists == 0:
        return -1
    copy_bytes(data, 0, out, num_items * width, starts[0] * width)
    num_items += starts[0]
    for index in range(num_starts):
        first, size = starts[index], starts[index + 1] - starts[index]
        is_valid = len(lists) == 0 or lists[index] != 0
        is_same = (
            0 < index < num_starts - 1
            and size == first - starts[index - 1]
            and (len(lists) == 0 or lists[index] == lists[index - 1])
            and _is_same(data, first * width, (first - size) * width, size * width)
        )
        if not is_same:
            out_starts[num_lists] = num_items
            out_lists[num_lists] = is_valid
            copy_bytes(data, first * width, out, num_items * width, size * width)
            num_items += size
            num_lists += 1
        codes[num_rows] = num_lists - 1
        num_rows += 1
    state[0], state[1], state[2] = num_rows, num_lists, num_items
    return 0


@numba.njit(inline="always")
def _is_same(data: Any, left: int, right: int, count: int) -> bool:
    """Return whether `count` bytes are equal, compared 32 at a time by one instruction."""
    done = 0
    while done + 32 <= count:
        bits: Any = np.uint64(0)
        for word in range(4):
            place = done + 8 * word
            one: Any = load_word(data, left + place)
            bits |= one ^ load_word(data, right + place)
        if bits:
            return False
        done += 32
    while done < count and data[left + done] == data[right + done]:
        done += 1
    return done == count
