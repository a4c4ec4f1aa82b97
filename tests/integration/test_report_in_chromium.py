"""Report, profile and comparison in a browser: whole, quiet, within the screen, light and dark."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from stored_runs import StoredRun, write_stored_run

from pipeline_runtime.comparison.comparing import compare
from pipeline_runtime.comparison.gathering import gather
from pipeline_runtime.comparison.model import Setting
from pipeline_runtime.comparison.page import write_page
from pipeline_runtime.profiling.page import PAGE_FILE, write_profile
from pipeline_runtime.profiling.testing import build_sample_profile
from pipeline_runtime.report import (
    ExperimentName,
    HistoryWriter,
    Summary,
    build_report,
    write_summary,
)
from pipeline_runtime.report.files.autoscaler_decisions import ScalingDecision, write_decisions
from pipeline_runtime.report.html import REPORT_FILE
from pipeline_runtime.report.testing import build_sample_summary, write_sample_run

COMPARISON_FILE = "comparison.html"
PHONE_PX = 390
DESKTOP_PX = 1280
EVIL_NAME = "<img src=x onerror=alert(1)>" + "very-long-name-" * 12
SECTIONS = ("training", "throughput", "supply", "time", "rows", "plan", "manifest", "made-with")

# What lies beyond the right edge of the window and is not inside something that scrolls.
FIND_OVERFLOW = """() => [...document.querySelectorAll('body *')].filter(e =>
    !e.closest('.scroll') && !e.closest('pre') && !e.closest('svg')
    && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1
).map(e => e.tagName + '.' + e.className)"""


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("complete")
    write_sample_run(directory)
    return build_report(directory)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with wicked and overlong texts that failed before it read a row."""
    directory = tmp_path_factory.mktemp("failed")
    run = build_sample_summary().run.model_copy(
        update={"outcome": "Failed", "error": f"StepError: {EVIL_NAME}", "run_hash": "f" * 128}
    )
    summary = Summary(
        experiment=ExperimentName(name=EVIL_NAME), run=run, warnings=(EVIL_NAME.replace("-", ""),)
    )
    write_summary(directory, summary)
    stage = {"name": EVIL_NAME, "where": EVIL_NAME, "steps": [{"kind": "map", "label": EVIL_NAME}]}
    (directory / "plan.json").write_text(json.dumps({"stages": [stage], "text": EVIL_NAME}))
    with HistoryWriter(directory / "metrics.parquet") as history:
        for step in (1, 2):
            clock = run.started_at.timestamp() + step
            values = {"unix_seconds": clock, "wait_share": 0.5, "busy_share": 0.4, "readers": 4.0}
            history.append(float(step), 0, step, values)
    wicked = {"reason": EVIL_NAME, "message": EVIL_NAME.replace("-", "")}
    decision = ScalingDecision(version=1, time=run.started_at, before=2, after=4, **wicked)
    write_decisions(directory, [decision])
    (directory / "manifest.yaml").write_text(f"name: {EVIL_NAME}\n")
    return build_report(directory)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile's page, with an overlong text."""
    profile = build_sample_profile()
    long = profile.steps[0].model_copy(update={"label": EVIL_NAME})
    steps = (long, *profile.steps[1:])
    directory = tmp_path_factory.mktemp("profiled")
    return write_profile(directory, profile.model_copy(update={"steps": steps}))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a comparison of three variants, with wicked and overlong texts."""
    directory = tmp_path_factory.mktemp("compared")
    for name, quality in (("clicks", 1.0), ("better", 1.3), ("same", 1.0)):
        for seed in range(3):
            run = StoredRun(name=name, seed=seed, start=seed, quality=quality, salt=len(name))
            write_stored_run(directory, run)
    gathered = gather(("clicks", "better", "same"), str(directory))
    comparison = compare(gathered)
    settings = (Setting(path=EVIL_NAME, values=("1", EVIL_NAME, "2")),)
    change = {"settings": settings, "warnings": (EVIL_NAME.replace("-", ""),)}
    path = directory / COMPARISON_FILE
    write_page(path, comparison.model_copy(update=change), gathered)
    return path


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test if it writes to the console, raises, or asks for another URL."""
    page = browser.new_page(viewport={"width": DESKTOP_PX, "height": 900})
    heard: list[str] = []
    page.on("console", lambda message: heard.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.on("dialog", lambda dialog: heard.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: heard.append(f"request: {request.url}"))
    yield page
    page.close()
    requests = [line for line in heard if line.startswith("request:")]
    assert len(requests) == 1
    assert requests[0].endswith((REPORT_FILE, PAGE_FILE, COMPARISON_FILE))
    assert heard == requests


def test_every_section_is_there_with_its_numbers(page: Page, complete: Path) -> None:
    page.goto(complete.as_uri())
    assert page.title() == "quickstart: Complete"
    for name in SECTIONS:
        assert page.locator(f"section#{name} h2").is_visible(), name
    headline = page.locator("#headline").inner_text().replace("\u00a0", " ")
    for number in ("8.19 M", "8.11 k/s", "0.7812", "0.4127", "33.8 %", "431 ms", "16 min 49 s"):
        assert number in headline
    rows = page.locator("#rows .funnel").first.locator("tbody tr")
    assert rows.count() == 6
    assert "8,189,952" in rows.nth(3).inner_text()
    assert page.locator("#evaluations tbody tr").count() == 6
    decided = page.locator("#decisions li")
    assert decided.count() == 3
    assert "2 → 4" in decided.first.inner_text()
    label = page.locator("#supply svg").get_attribute("aria-label") or ""
    assert "decisions: 2 → 4 after 50\u00a0s" in label
    assert "9f3a6b01c2d4e5f6" in page.locator("#checksum").inner_text()
    assert "pipeline[2].downsample" in page.locator("#seeds").inner_text()
    assert "2.60.0" in page.locator("#versions").inner_text()
    assert "antiJoin: {parquet:" in page.locator("#manifest pre").inner_text()


@pytest.mark.parametrize("width_px", [PHONE_PX, DESKTOP_PX])
def test_every_figure_is_drawn_and_named(width_px: int, page: Page, complete: Path) -> None:
    page.set_viewport_size({"width": width_px, "height": 900})
    page.goto(complete.as_uri())
    figures = page.locator("figure svg")
    assert figures.count() == 9  # loss, auc, learning rate, four over time, supply, shares
    for index in range(figures.count()):
        figure = figures.nth(index)
        box = figure.bounding_box()
        assert box is not None
        assert box["width"] > 250
        assert box["height"] > 120
        assert figure.locator("path").count() > 3
        assert figure.get_attribute("role") == "img"
        assert figure.get_attribute("aria-label")


@pytest.mark.parametrize("width_px", [PHONE_PX, DESKTOP_PX])
@pytest.mark.parametrize("which", ["complete", "failed", "profiled", "compared"])
def test_nothing_runs_off_the_screen(
    width_px: int, which: str, page: Page, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(which)
    page.set_viewport_size({"width": width_px, "height": 900})
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width_px
    assert page.evaluate(FIND_OVERFLOW) == []


def test_labels_of_a_figure_do_not_overlap_on_a_phone(page: Page, complete: Path) -> None:
    page.set_viewport_size({"width": PHONE_PX, "height": 900})
    page.goto(complete.as_uri())
    overlaps = page.evaluate(
        """() => [...document.querySelectorAll('figure svg')].flatMap(svg => {
            const boxes = [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect());
            return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
                a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom
            ).map(b => [a.left, a.top, b.left, b.top]));
        })"""
    )
    assert overlaps == []


def test_a_profile_shows_supply_and_demand(page: Page, profiled: Path) -> None:
    page.goto(profiled.as_uri())
    assert page.title().startswith("ranking: ")
    for name in ("advice", "supply", "steps", "bytes"):
        assert page.locator(f"section#{name} h2").is_visible(), name
    assert "12 needed" in (page.locator("#supply svg").get_attribute("aria-label") or "")
    assert page.locator("#steps tbody tr").count() == 3


def test_a_comparison_shows_verdicts_intervals_and_curves(page: Page, compared: Path) -> None:
    page.goto(compared.as_uri())
    verdicts = page.locator("#verdict li").all_inner_texts()
    assert verdicts[0].startswith("B is better than A: auc +")
    assert "inconclusive" in verdicts[1]
    labels = [svg.get_attribute("aria-label") or "" for svg in page.locator("#verdict svg").all()]
    assert [label.partition(":")[0] for label in labels] == [
        "Difference in auc",
        "Difference in loss",
    ]
    assert page.locator("#curves svg").count() == 3  # loss of training, loss and auc of evaluation
    assert page.locator("#warnings li").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_figures_follow_the_colour_scheme(
    scheme: str, browser: Browser, complete: Path
) -> None:
    page = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(complete.as_uri())
    back, text, tick = page.evaluate(
        """() => [
            getComputedStyle(document.body).backgroundColor,
            getComputedStyle(document.body).color,
            getComputedStyle(document.querySelector('figure svg text')).fill,
        ].map(c => c.match(/\\d+/g).slice(0, 3).reduce((sum, n) => sum + Number(n) / 765, 0))"""
    )
    page.close()
    if scheme == "dark":
        assert back < 0.2 < 0.5 < min(text, tick)
    else:
        assert max(text, tick) < 0.5 < 0.8 < back


def test_paper_is_white_whatever_the_screen_is(browser: Browser, complete: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.goto(complete.as_uri())
    colors = page.evaluate(
        """() => [getComputedStyle(document.body)].flatMap(s => [s.color, s.backgroundColor])"""
    )
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.close()
    assert colors == ["rgb(27, 31, 36)", "rgb(255, 255, 255)"]


def test_text_of_the_user_stays_text(page: Page, failed: Path) -> None:
    page.goto(failed.as_uri())
    assert page.locator("h1").inner_text() == EVIL_NAME
    assert page.locator("img").count() == 0
    assert EVIL_NAME in page.locator("#error").inner_text()
    assert page.locator("#manifest pre").inner_text().strip() == f"name: {EVIL_NAME}"


def test_a_failure_is_seen_without_scrolling(page: Page, failed: Path) -> None:
    page.goto(failed.as_uri())
    box = page.locator("#error h2").bounding_box()
    assert box is not None
    assert box["y"] < 500
    assert page.locator("#warnings").is_visible()
