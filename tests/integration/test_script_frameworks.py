"""Scripts with Lightning and Hugging Face's Trainer: each row once, whatever they resume from."""

from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
from experiments import build_experiment
from framework_scripts import HUGGING_FACE, LIGHTNING, keep_trained, read_steps
from local_scripts import BATCH_ROWS, NUM_ROWS, Scripts, write_table
from script_ranks import run_attempts

# Both libraries warn about much that is no concern of ours, such as deprecated parts of torch.
pytestmark = pytest.mark.filterwarnings("ignore")

FILTER = {"filter": {"where": "id >= 0"}}  # keeps all rows, but the length is unknown
STEPS_PER_EPOCH = 15  # of 70 rows


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    monkeypatch.syspath_prepend(str(tmp_path))
    return write_table(tmp_path)


SCRIPTS = {"Lightning": LIGHTNING, "Hugging Face": HUGGING_FACE}
LENGTHS: dict[str, list[dict[str, Any]]] = {"length known": [], "length unknown": [FILTER]}
PLACES = {  # every how many steps the script saves, and where it fails
    "within an epoch": (4, 6),
    "within the second epoch": (4, 22),
    "at the end of an epoch": (15, 17),
}
USUAL = [
    ("Lightning", "length unknown", "within the second epoch"),
    ("Hugging Face", "length known", "within an epoch"),
]
CASES = [
    pytest.param(
        SCRIPTS[case[0]],
        LENGTHS[case[1]],
        *PLACES[case[2]],
        id=", ".join(case),
        marks=() if case in USUAL else pytest.mark.slow,
    )
    for case in product(SCRIPTS, LENGTHS, PLACES)
]


@pytest.mark.parametrize(("script", "steps", "every", "fail_at"), CASES)
def test_a_resumed_script_trains_each_row_once_per_epoch(
    scripts: Scripts, script: str, steps: list[dict[str, Any]], every: int, fail_at: int
) -> None:
    max_steps = str(2 * STEPS_PER_EPOCH) if steps else "-1"
    settings: dict[str, Any] = {"epochs": 2, "checkpoint": {"everySteps": every}, "columns": ["id"]}

    failed = scripts.run(script, str(fail_at), max_steps, **settings, steps=steps)
    assert "the user's own mistake" in (failed.state.failure or "")
    (scripts.folder / "cured").touch()
    ended = scripts.run(script, str(fail_at), max_steps, resume=True, **settings, steps=steps)

    assert (ended.outcome, ended.explanation) == (None, None)
    kept = keep_trained(read_steps(scripts.folder))
    assert [each["step"] for each in kept] == list(range(1, 2 * STEPS_PER_EPOCH + 1))
    for epoch in (kept[:STEPS_PER_EPOCH], kept[STEPS_PER_EPOCH:]):
        ids = chain.from_iterable(each["ids"] for each in epoch)
        assert sorted(ids) == list(range(NUM_ROWS))
    [rank] = ended.state.ranks.values()
    assert (rank.step, rank.checksum["rows"]) == (2 * STEPS_PER_EPOCH, 2 * NUM_ROWS)


@pytest.mark.slow
@pytest.mark.timeout(900)  # four processes that import the library, two at a time
@pytest.mark.parametrize(
    ("script", "steps"),
    [
        pytest.param(LIGHTNING, [FILTER], id="Lightning"),
        pytest.param(HUGGING_FACE, [], id="Hugging Face"),
    ],
)
def test_two_ranks_train_each_row_once_per_epoch(
    scripts: Scripts, script: str, steps: list[dict[str, Any]]
) -> None:
    (scripts.folder / "train.py").write_text(script)
    training = {
        "script": "train.py",
        "args": [str(scripts.folder), "10", "-1"],
        "batchSize": BATCH_ROWS,
        "columns": ["id"],
        "epochs": 2,
        "checkpoint": {"everySteps": 4},
    }
    document = build_experiment(
        dataset={"parquet": {"uri": "table/"}, "rowKey": ["id"]},
        pipeline=steps,
        training=training,
        pipelineOptions={"rowsPerBlock": 100},
    )

    run_attempts(scripts.folder, document, world_size=2, apart=True)

    ranks = [keep_trained(read_steps(scripts.folder, rank)) for rank in range(2)]
    numbers = [[each["step"] for each in rank] for rank in ranks]
    assert numbers[0] == numbers[1] == list(range(1, len(ranks[0]) + 1))
    ids = sorted(chain.from_iterable(each["ids"] for rank in ranks for each in rank))
    assert ids == sorted([*range(NUM_ROWS), *range(NUM_ROWS)])
