"""Jars run only if they are the pinned ones."""

from __future__ import annotations

import pytest
from facts import assert_told

from tools.go_tools import ToolError
from tools.packages import ALL, Jars, check, read_checksums

PINNED = {"a-1.jar": "0a", "b-1.jar": "0b"}


@pytest.mark.parametrize(
    ("found", "names"),
    [
        pytest.param({"a-1.jar": "0a", "b-1.jar": "0c"}, "b-1.jar", id="another content"),
        pytest.param({"a-1.jar": "0a"}, "b-1.jar", id="missing"),
        pytest.param({**PINNED, "c-1.jar": "0c"}, "c-1.jar", id="not pinned"),
        pytest.param({"a-1.jar": "0a", "b-2.jar": "0b"}, "b-1.jar, b-2.jar", id="another version"),
    ],
)
def test_other_jars_are_refused(found: dict[str, str], names: str) -> None:
    with pytest.raises(ToolError) as caught:
        check(PINNED, found)
    assert_told(str(caught.value), f"… jars.sha256: {names}. …")


def test_pinned_jars_are_accepted() -> None:
    check(PINNED, dict(PINNED))


@pytest.mark.parametrize("jars", ALL.values(), ids=ALL)
def test_pins_have_checksums(jars: Jars) -> None:
    assert {len(bytes.fromhex(checksum)) for checksum in read_checksums(jars).values()} == {32}
    assert jars.name in jars.pom.read_text()
