"""Numbers as a person reads them; no-break spaces are shown as plain ones here."""

import math
from collections.abc import Callable

import pytest

from pipeline_runtime import formatting


def plain(text: str) -> str:
    return text.replace(formatting.NO_BREAK_SPACE, " ")


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (formatting.format_count, 1048576, "1,048,576"),
        (formatting.format_short, 0, "0"),
        (formatting.format_short, 999, "999"),
        (formatting.format_short, 999.4, "999"),
        (formatting.format_short, 999_499, "999 k"),
        (formatting.format_short, 999_999, "1 M"),  # not 1000 k
        (formatting.format_short, 1_048_576, "1.05 M"),
        (formatting.format_short, -12_345, "-12.3 k"),
        (formatting.format_short, 0.0451, "0.0451"),
        (formatting.format_short, math.nan, "NaN"),
        (formatting.format_short, math.inf, "∞"),
        (formatting.format_rate, 12_345, "12.3 k/s"),
        (formatting.format_rate, 12, "12 /s"),
        (formatting.format_bytes, 0, "0 B"),
        (formatting.format_bytes, 2_800_000_000, "2.8 GB"),
        (formatting.format_percent, 0, "0 %"),
        (formatting.format_percent, 0.00001, "<0.1 %"),  # not nothing
        (formatting.format_percent, 0.1234, "12.3 %"),
        (formatting.format_percent, 0.99999, ">99.9 %"),  # not all
        (formatting.format_percent, 1, "100 %"),
        (formatting.format_percent, 2.5, "250 %"),  # a join can multiply rows
        (formatting.format_duration, 0, "0 s"),
        (formatting.format_duration, 0.0421, "42.1 ms"),
        (formatting.format_duration, 12.34, "12.3 s"),
        (formatting.format_duration, 59.97, "1 min 00 s"),  # not 60 s
        (formatting.format_duration, 245, "4 min 05 s"),
        (formatting.format_duration, 3599.7, "1 h 00 min"),
        (formatting.format_duration, 7380, "2 h 03 min"),
        (formatting.format_duration, 90_000, "1 d 01 h"),
        (formatting.format_metric, 0.78123, "0.7812"),
        (formatting.format_metric, 0.0000123, "1.23e-05"),
        (formatting.format_metric, 123_456.7, "123,457"),
        (formatting.format_metric, math.nan, "NaN"),
        (formatting.format_metric, 1e300, "1e+300"),  # a loss on its way to infinity
        (formatting.format_short, 1e300, "1e+300"),
        (formatting.format_short, 9.99e20, "999 E"),  # the last with a prefix
    ],
)
def test_numbers_read_well(function: Callable[[float], str], value: float, text: str) -> None:
    assert plain(function(value)) == text


@pytest.mark.parametrize(
    ("ticks", "texts"),
    [
        pytest.param([0, 0.2, 0.4], ["0", "0.2", "0.4"], id="tenths"),
        pytest.param([0.4501, 0.4502], ["0.4501", "0.4502"], id="close together stay apart"),
        pytest.param([0, 2000, 4000], ["0", "2,000", "4,000"], id="thousands are separated"),
        pytest.param([0, 25_000, 50_000], ["0", "25 k", "50 k"], id="tens of thousands"),
        pytest.param([0, 1_250_000], ["0", "1.25 M"], id="decimals as the gap needs"),
        pytest.param([0, 1e-5, 2e-5], ["0", "1e-05", "2e-05"], id="tiny"),
    ],
)
def test_ticks_can_be_told_apart(ticks: list[float], texts: list[str]) -> None:
    gap = ticks[1] - ticks[0]
    shown = [formatting.format_tick(tick, largest=ticks[-1], gap=gap) for tick in ticks]
    assert [plain(text) for text in shown] == texts
