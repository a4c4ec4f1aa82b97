"""JSON of any depth is parsed, and only the parts that are too deep are lost."""

import asyncio
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio.client import ApiClient, Configuration
from local_http import serving

from dataset_operator.errors import UserError
from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.parsing import MAX_DEPTH, parse_json
from dataset_operator.sizing.measured import PROFILE_FILE, load_profile
from pipeline_runtime.config import KIND

DEPTHS = (MAX_DEPTH, 1_500, 9_990, 60_000)
BACKSLASH_N = r"\n"
TEXT = '"\\"[{\\\\"'  # brackets and quotes inside a string


def nest(depth: int) -> str:
    """Return JSON text of lists and mappings that are nested so deep."""
    return '[{"{": ' * (depth // 2) + TEXT + "}]" * (depth // 2)


def parse(text: str) -> Any:
    return asyncio.run(parse_json(text.encode()))


def test_escapes_beside_deep_parts_take_little_memory() -> None:
    num_escapes = 500_000
    text = f'[{"[" * 300}{"]" * 300}, "{BACKSLASH_N * num_escapes}"]'
    tracemalloc.start()
    try:
        found = parse(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found[1] == "\n" * num_escapes
    assert peak < 8 * len(text)


@pytest.mark.parametrize("depth", DEPTHS)
def test_deep_parts_are_cut_and_the_rest_is_kept(depth: int) -> None:
    found = parse(f'{{"a": {TEXT}, "b": [{nest(depth)}, {nest(4)}, 1], "c": {{"d": {nest(4)}}}}}')
    small = [{"{": [{"{": '"[{\\'}]}]
    assert (found["a"], found["b"][1:], found["c"]) == ('"[{\\', [small, 1], {"d": small})
    assert len(json.dumps(found["b"][0])) < MAX_DEPTH * 8


json_values = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(alphabet='"\\[]{},: x'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='"\\[]{}'), inner),
)


@given(before=json_values, after=json_values)
def test_what_stands_beside_a_deep_part_stays(before: Any, after: Any) -> None:
    found = parse(f"[{json.dumps(before)}, {nest(1_000)}, {json.dumps(after)}]")
    assert [found[0], found[2]] == [before, after]


@pytest.mark.parametrize("text", ["", "[" * 60_000, "]" * 9, '"' * 9, '{"a": ' * 300 + '"\\'])
def test_broken_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        parse(text)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_deep_object_loses_no_metadata_and_no_neighbour(depth: int) -> None:
    limit = sys.getrecursionlimit()
    deep = f'{{"metadata": {{"name": "deep", "uid": "1"}}, "spec": {nest(depth)}}}'
    whole = '{"metadata": {"name": "whole", "uid": "2"}}'

    async def answer(request: web.Request) -> web.Response:
        items = f'{{"items": [{deep}, {whole}], "metadata": {{}}}}'
        return web.Response(text=items if "limit" in request.query else deep)

    async def story() -> tuple[Any, list[Any]]:
        async with serving(answer) as url, ApiClient(Configuration(host=url)) as client:
            kube = KubeClient(client)
            return await kube.get(KIND, "ns", "deep"), await kube.list_objects(KIND, "ns", "")

    found, listed = asyncio.run(story())
    assert found["metadata"] == {"name": "deep", "uid": "1"}
    assert [each["metadata"]["name"] for each in listed] == ["deep", "whole"]
    assert sys.getrecursionlimit() == limit


def test_a_deep_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / PROFILE_FILE).write_text("[" * 60_000 + "]" * 60_000)
    with pytest.raises(UserError, match="JSON"):
        load_profile(tmp_path, "")
