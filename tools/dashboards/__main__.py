"""`python -m tools.dashboards` writes deploy/grafana; see `make dashboards`."""

from __future__ import annotations

from pathlib import Path

from tools.dashboards.build import render
from tools.dashboards.experiment import EXPERIMENT
from tools.dashboards.fleet import FLEET

BOARDS = (FLEET, EXPERIMENT)
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for board in BOARDS:
        (FOLDER / f"{board.name}.json").write_text(render(board))


if __name__ == "__main__":
    main()
