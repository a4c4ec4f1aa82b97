"""The best checkpoint: which one it is, and that it stays beside the newest ones."""

from pathlib import Path

import pytest
from saved_checkpoints import make_header

from pipeline_runtime.config.training import KeepBest
from pipeline_runtime.sources import open_location
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore, find_resumable


def make_store(folder: Path, mode: str, *, keep: int = 1) -> CheckpointStore:
    keep_best = KeepBest(metric="eval_auc", mode=mode)
    return CheckpointStore(location=open_location(str(folder)), keep=keep, keep_best=keep_best)


def save(store: CheckpointStore, step: int, metrics: dict[str, float]) -> None:
    header = {**make_header(step), "score": store.score(metrics)}
    store.remove_old(store.save({"user": {}, "rng": []}, header))


NAN = float("nan")


@pytest.mark.parametrize(
    ("mode", "values", "best", "kept"),
    [
        pytest.param("Max", [0.5, 0.9, 0.7, 0.6], 2, [4, 2], id="highest"),
        pytest.param("Min", [0.5, 0.9, 0.7, 0.6], 1, [4, 1], id="lowest"),
        pytest.param("Max", [0.5, 0.9, 0.9, 0.9], 2, [4, 2], id="the earliest of equal ones"),
        pytest.param("Max", [0.5, 0.6, 0.7, 0.8], 4, [4], id="the newest"),
        pytest.param("Max", [NAN, 0.2, NAN, float("inf")], 2, [4, 2], id="finite ones only"),
        pytest.param("Max", [0.5, None, None, None], 1, [4, 1], id="those without it do not count"),
        pytest.param("Max", [None, None, None, None], None, [4], id="none"),
        pytest.param("Min", [-1.0, 0.0, -2.0, -0.5], 3, [4, 3], id="negative values"),
    ],
)
def test_the_best_checkpoint_stays_beside_the_last(
    mode: str, values: list[float | None], best: int | None, kept: list[int], tmp_path: Path
) -> None:
    store = make_store(tmp_path, mode)
    for step, value in enumerate(values, 1):
        save(store, step, {"loss": 1.0} if value is None else {"eval_auc": value})
    headers = store.headers()
    found = store.find_best(headers)
    assert [header.step for header in headers] == kept
    assert (None if found is None else found.step) == best


def test_a_resume_takes_the_last_checkpoint_and_keeps_the_best(tmp_path: Path) -> None:
    store = make_store(tmp_path, "Max")
    for step, value in enumerate((0.9, 0.3, 0.2), 1):
        save(store, step, {"eval_auc": value})
    # A later attempt has a new store object, which knows nothing but the folder.
    resumed = make_store(tmp_path, "Max")
    found = find_resumable([resumed], make_header(1)["run_hash"], {})
    assert found is not None
    assert found.header.step == 3
    save(found.store, 4, {"eval_auc": 0.5})
    assert [header.step for header in resumed.headers()] == [4, 1]


def test_scores_of_another_metric_do_not_count(tmp_path: Path) -> None:
    store = make_store(tmp_path, "Max", keep=3)
    save(store, 1, {"eval_auc": 0.9})
    other = CheckpointStore(
        location=store.location, keep=3, keep_best=KeepBest(metric="eval_loss", mode="Min")
    )
    save(other, 2, {"eval_loss": 0.1})
    found = other.find_best(other.headers())
    assert found is not None
    assert found.step == 2
