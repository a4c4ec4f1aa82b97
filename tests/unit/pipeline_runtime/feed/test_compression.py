"""A codec is chosen by what chunks cost the trainer, and only if their way costs it anything."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pipeline_runtime.feed.transport.compression import CodecChoice

# Bytes of a chunk, the share that each codec leaves, and how fast each codec is undone.
CHUNK_BYTES = 100_000_000
LEFT = {None: 1.0, "lz4": 0.5, "zstd": 0.25}
UNDONE_BYTES_PER_SECOND = {None: float("inf"), "lz4": 2e9, "zstd": 0.8e9}


def feed(
    choice: CodecChoice, bytes_per_second: float, chunks: int, step: float
) -> list[str | None]:
    """Codecs of chunks that come one after another, while the trainer needs `step` for each."""
    used: list[str | None] = []
    now = 0.0
    for _ in range(chunks):
        codec = choice.codec
        used.append(codec)
        on_its_way = CHUNK_BYTES * LEFT[codec] / bytes_per_second
        waited, undone = max(0.0, on_its_way - step), CHUNK_BYTES / UNDONE_BYTES_PER_SECOND[codec]
        now += waited + undone + step
        choice.note(codec, CHUNK_BYTES, waited, undone, now)
    return used


@pytest.mark.parametrize(
    ("bytes_per_second", "step", "expected"),
    [
        pytest.param(10e9, 0.1, None, id="a fast network"),
        pytest.param(0.6e9, 0.1, "lz4", id="half the bytes hide behind the step"),
        pytest.param(0.1e9, 0.1, "zstd", id="a slow network"),
    ],
)
def test_the_codec_that_costs_least_stays(
    bytes_per_second: float, step: float, expected: str | None
) -> None:
    used = feed(CodecChoice("Auto"), bytes_per_second, 400, step)
    assert used[0] is None  # nothing is compressed before it is known to help
    assert set(used[-300:]) == {expected}


def test_a_network_that_gets_faster_is_noticed() -> None:
    choice = CodecChoice("Auto")
    assert feed(choice, 0.1e9, 100, 0.1)[-1] == "zstd"
    assert feed(choice, 10e9, 1200, 0.1)[-1] is None


@pytest.mark.parametrize(("setting", "codec"), [("None", None), ("lz4", "lz4"), ("zstd", "zstd")])
def test_what_the_manifest_says_is_not_tried(setting: str, codec: str | None) -> None:
    assert set(feed(CodecChoice(setting), 0.05e9, 50, 0.1)) == {codec}


def test_chunks_that_were_asked_for_before_a_codec_s_turn_do_not_count_in_it() -> None:
    choice = CodecChoice("Auto")
    late: Mapping[str, float] = {"waited": 1.0, "undone": 0.0}
    for index in range(8):
        choice.note(None, CHUNK_BYTES, **late, now=float(index))
    assert choice.codec == "lz4"
    for index in range(8, 40):
        choice.note(None, CHUNK_BYTES, **late, now=float(index))
    assert choice.codec == "lz4"
