"""The results as a page and as a picture, both with the card's name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.dataloading.workloads import FORMS
from benchmarks.gpu.asking import GAP_SECONDS
from benchmarks.gpu.cells import SIZES, WAYS
from benchmarks.records import Document

# Okabe and Ito's colours, which people who see colours differently can tell apart.
_COLOURS: Final = dict(
    zip(WAYS, ("#999999", "#0072B2", "#56B4E9", "#D55E00", "#E69F00"), strict=True)
)

_COLUMNS: Final = (
    *("model", "batches", "thousand samples/s", "share", "busy", "gaps per step", "in gaps"),
    *("longest gap, ms", "waited"),
)


def build_markdown(results: Document) -> str:
    """Return the page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    device, machine, settings = results["device"], results["machine"], results["settings"]
    yield f"# Training on {device['name']}"
    yield ""
    yield f"Made by `{results['command']}` at commit {results['commit']}; do not edit. How it is"
    yield "measured: [docs/benchmarks.md](../../docs/benchmarks.md#on-a-gpu)."
    yield ""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    yield f"{_describe_card(device)}; {machine['cores']} cores of {machine['processor']};"
    yield f"{versions}. {settings['rows']:,} input rows, batches of {settings['batch_size']:,}."
    yield ""
    if results["indicative"]:
        yield f"**Indicative: {'; '.join(results['indicative'])}.**"
        yield ""
    yield "Median (least–most) of the rounds. Share: of the rate with frozen batches. Busy: share"
    yield "of the traced time in which a kernel ran. Gaps: of at least"
    yield f"{GAP_SECONDS * 1e3:g} ms without a kernel. Waited: share of the loop's time until"
    yield "batches came."
    for form in FORMS:
        yield ""
        yield f"## {form.capitalize()} batches"
        yield ""
        yield f"| {' | '.join(_COLUMNS)} |"
        yield "|---" * len(_COLUMNS) + "|"
        for cell in (cell for cell in results["cells"] if cell["form"] == form):
            yield f"| {' | '.join(_row(cell))} |"
    yield ""
    yield from _tuning_lines(results)


def _describe_card(device: Document) -> str:
    if device["type"] == "cpu":
        return f"{device['name']}, without a GPU"
    return f"{device['name']}, {device['memoryGiB']} GiB, CUDA {device['cuda']}"


def _row(cell: Document) -> Iterator[str]:
    tuning = f" ({cell['tuning']})" if cell["tuning"] else ""
    yield cell["size"]
    yield cell["way"] + tuning
    yield _format_spread(cell["samplesPerSecond"], 1e-3, ",.0f")
    yield _format_spread(cell["shareOfFrozen"], 1.0, ".2f")
    trace = cell["trace"]
    if trace is None:
        yield from ("–",) * 4
    else:
        yield f"{trace['utilisation']:.0%}"
        yield f"{trace['gapsPerStep']:.1f}"
        yield f"{trace['gapShare']:.0%}"
        yield f"{trace['longestGapMilliseconds']:.1f}"
    yield f"{cell['waitedShare']:.0%}"


def _format_spread(spread: Document | None, factor: float, how: str) -> str:
    if spread is None:
        return "–"
    median, low, high = (f"{spread[k] * factor:{how}}" for k in ("median", "min", "max"))
    return f"{median} ({low}–{high})"


def _tuning_lines(results: Document) -> Iterator[str]:
    yield "## Settings of the DataLoader"
    yield ""
    yield "Thousand samples/s to the device, pinned, without a model; the best is compared above."
    yield ""
    yield "| workers | sends | " + " | ".join(FORMS) + " |"
    yield "|---|---|" + "---|" * len(FORMS)
    rates = {
        (row["workers"], row["unit"], row["form"]): row["samplesPerSecond"]
        for row in results["tuning"]
    }
    for workers, unit in dict.fromkeys((workers, unit) for workers, unit, _ in rates):
        found = (rates.get((workers, unit, form)) for form in FORMS)
        cells = ("–" if rate is None else f"{rate / 1000:,.0f}" for rate in found)
        yield f"| {workers} | {unit} | {' | '.join(cells)} |"


def draw(results: Document, path: Path) -> None:
    """Draw share of the frozen rate and utilisation, as SVG; equal results give equal bytes."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        print(f"no picture without matplotlib: see --draw of the benchmark, for {path.stem}.json")
        return
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=(10, 6), layout="constrained")
        axes = figure.subplots(2, len(FORMS), sharey="row", squeeze=False)
        for column, form in enumerate(FORMS):
            cells = [cell for cell in results["cells"] if cell["form"] == form]
            _draw_bars(axes[0][column], cells, _share)
            _draw_bars(axes[1][column], cells, _utilisation)
            axes[0][column].set_title(f"{form} batches")
        axes[0][0].set_ylabel("rate over that of frozen batches")
        axes[1][0].set_ylabel("share of time with a kernel")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        kind = "Indicative: " if results["indicative"] else ""
        figure.suptitle(f"{kind}training on {_describe_card(results['device'])}")
        figure.savefig(path, format="svg", metadata={"Date": None})


def _share(cell: Document) -> float:
    spread = cell["shareOfFrozen"]
    return spread["median"] if spread else 0.0


def _utilisation(cell: Document) -> float:
    return cell["trace"]["utilisation"] if cell["trace"] else 0.0


def _draw_bars(axes: Any, cells: list[Document], value: Any) -> None:
    width = 0.8 / len(WAYS)
    for number, way in enumerate(WAYS):
        mine = [cell for cell in cells if cell["way"] == way]
        places = [SIZES.index(cell["size"]) + (number - 2) * width for cell in mine]
        axes.bar(places, [value(cell) for cell in mine], width, label=way, color=_COLOURS[way])
    axes.set_xticks(range(len(SIZES)), [f"{size} model" for size in SIZES])
    axes.axhline(1.0, color="0.4", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
