"""The benchmark of batches on their way runs, and all ways bring the same."""

import json
from pathlib import Path

from benchmarks.wire import DENSE, FILL_RATES, WAYS, main


def test_every_way_has_its_bytes_and_seconds_at_every_fill_rate(tmp_path: Path) -> None:
    assert main(["--rows", "5000", "--repeats", "2", "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "wire.json").read_text())
    cells = {(cell["fillRate"], cell["way"]): cell for cell in results["cells"]}
    assert cells.keys() == {(rate, way) for rate in FILL_RATES for way in WAYS}
    assert all(cell["takeSecondsPerMillionRows"]["min"] > 0 for cell in cells.values())
    empty, full = min(FILL_RATES), max(FILL_RATES)
    size = {key: cell["bytesPerRow"] for key, cell in cells.items()}
    assert size[empty, "sparse"] < size[empty, DENSE] / 3
    assert size[full, "sparse"] == size[full, DENSE]  # nothing to leave out
    assert size[empty, "sparse, zstd"] < size[empty, "sparse"]
    assert "<svg" in (tmp_path / "wire.svg").read_text()
    assert "| 5% | sparse |" in (tmp_path / "wire.md").read_text()
