"""The picture of a profile: what data workers make against what trainers take."""

from __future__ import annotations

from matplotlib.ticker import MaxNLocator

from pipeline_runtime.formatting import format_rate
from pipeline_runtime.profiling.document import Profile
from pipeline_runtime.report.drawing.curves import (
    FONT_POINTS,
    STAND_INS,
    TickFormatter,
    new_figure,
    to_svg,
)

# So far beyond the number that is needed, so that both sides of it are seen.
_BEYOND_RATIO = 1.6
_MIN_WORKERS_SHOWN = 4
# Room above the highest line.
_HEADROOM_RATIO = 1.15


def draw_supply(profile: Profile) -> str:
    """Samples per second over data workers, as an SVG element."""
    need, trainer = profile.need, profile.trainer
    last = max(_MIN_WORKERS_SHOWN, round(_BEYOND_RATIO * need.workers))
    roofline = need.ranks * trainer.roofline.median
    figure, axes = new_figure()
    allowed = (min(need.min_workers, last), min(need.max_workers, last))
    axes.axvspan(*allowed, color=STAND_INS["--grid"], alpha=0.5, linewidth=0)
    workers = [0, *range(1, last + 1)]
    supply = [need.supply(n) for n in workers]
    axes.plot(workers, supply, color=STAND_INS["--accent"], linewidth=1.8)
    axes.axhline(need.demand, color=STAND_INS["--second"], linewidth=1.6)
    axes.axhline(roofline, color=STAND_INS["--muted"], linewidth=1.2, linestyle=(0, (4, 3)))
    taken = min(need.demand, need.supply(need.workers))
    axes.plot([need.workers], [taken], color=STAND_INS["--second"], marker="o", markersize=6)
    axes.axvline(need.workers, color=STAND_INS["--second"], linewidth=0.8, linestyle=(0, (1, 2)))
    axes.set_xlim(0, last)
    axes.set_ylim(0, _HEADROOM_RATIO * max(roofline, supply[need.workers]))
    axes.set_xlabel("data workers", color=STAND_INS["--muted"], fontsize=FONT_POINTS)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(TickFormatter())
    label = (
        f"Samples per second by data workers: each makes {format_rate(need.supply(1))}; trainers "
        f"take {format_rate(need.demand)}, the model alone {format_rate(roofline)}; "
        f"{need.workers} needed"
    )
    return to_svg(figure, "supply", label)
