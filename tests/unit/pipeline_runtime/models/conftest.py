"""Two trained runs of the experiment `flights`: of the model in docs/models.md, and built-in."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from documented_code import read_documented
from trained_models import KEEP_BEST, train_flights, write_flights

COLUMNS = ["distance", "carrier", "recent_delays"]
SMALL = {"hashSize": 16, "embeddingDim": 4, "hidden": [8], "attentionLength": 2}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with the module `my_model`, and `build/` with the table."""
    folder = tmp_path_factory.mktemp("flights")
    text = read_documented("models.md", "A model of your own")
    (folder / "my_model.py").write_text(text)
    write_flights(folder / "build")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("my_model", None)


@pytest.fixture(scope="session")
def users_run(flights: Path) -> Path:
    """Return the folder of a run that trained the user's model for three epochs."""
    run, _ = train_flights(
        flights / "build",
        model="my_model:build",
        columns=COLUMNS,
        epochs=3,
        config={"hidden": 16, "learningRate": 0.01},
        checkpoint={"keep": 3, "keepBest": KEEP_BEST},
    )
    return run


@pytest.fixture(scope="session")
def built_in_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that trained the built-in model on lists of both kinds."""
    root = tmp_path_factory.mktemp("built-in")
    write_flights(root)
    sequences = [{"column": "stops", "target": "carrier"}, {"column": "legs", "target": "carrier"}]
    run, _ = train_flights(
        root,
        columns=["distance", "carrier", "stops", "legs"],
        config={**SMALL, "sequences": sequences},
    )
    return run
