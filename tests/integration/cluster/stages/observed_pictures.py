"""Pictures of the committed dashboards over what a Prometheus knows, as a browser shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from observed_stage import Observed
from playwright.async_api import Page, async_playwright

from tools.build_tools import find_browser
from tools.dashboards.draw import LABEL, Moment, draw_dashboard, name_series

WIDTH_PX = 1600
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
# What lies beyond the right edge of the window.
FIND_OVERFLOW = """() => [...document.querySelectorAll('body *')].filter(e =>
    e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length"""


async def take_pictures(
    observed: Observed, boards: Path, values: Mapping[str, str], minutes: float, output: Path
) -> list[Path]:
    """A picture of each dashboard, looked at; their files."""
    pictures = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser(), args=[*FLAGS])
        page = await browser.new_page(viewport={"width": WIDTH_PX, "height": 900})
        for file in sorted(boards.glob("*.json")):
            text = await draw(observed, file, values, minutes)
            await page.set_content(text)
            await look(page, len(json.loads(file.read_text())["panels"]))
            picture = output / f"{file.stem}.png"
            await page.screenshot(path=picture, full_page=True)
            pictures.append(picture)
        await browser.close()
    return pictures


async def draw(observed: Observed, file: Path, values: Mapping[str, str], minutes: float) -> str:
    """The page of a dashboard with the answers of the last minutes."""
    text = file.read_text()
    for variable, value in values.items():
        text = text.replace(variable, value)
    document = json.loads(text)
    answers = {
        (panel["title"], target["refId"]): await observed.query_range(target["expr"], minutes)
        for panel in document["panels"]
        for target in panel.get("targets", ())
    }
    moments = []
    for mark in document.get("annotations", {}).get("list", ()):
        for series in await observed.query_range(mark["expr"], minutes):
            title = name_series(f"{mark['titleFormat']} {mark['textFormat']}", series["metric"])
            times = {float(value) / 1000 for _, value in series["values"]}
            moments += [Moment(time=time, text=title) for time in times]
    return draw_dashboard(document, answers, moments)


async def look(page: Page, panels: int) -> None:
    """Everything is there, within the screen, and says who drew it."""
    assert await page.locator("section, main h2").count() == panels
    assert LABEL in await page.locator("body > p").inner_text()
    assert await page.evaluate(FIND_OVERFLOW) == 0
    assert await page.locator("svg polyline").count() > panels / 2
