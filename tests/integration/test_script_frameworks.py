"""Scripts with Lightning and Hugging Face's Trainer: each row once, whatever they resume from."""

import json
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
from documented_code import read_documented
from local_scripts import NUM_ROWS, Scripts, write_table

# Both libraries warn about much that is no concern of ours, such as deprecated parts of torch.
pytestmark = pytest.mark.filterwarnings("ignore")

FILTER = {"filter": {"where": "id >= 0"}}  # keeps all rows, but the length is unknown
STEPS_PER_EPOCH = 15  # of 70 rows

START = """
import json, os, sys
from pathlib import Path
from tempfile import TemporaryDirectory
import torch
from torch import nn
from pipeline_runtime import current

folder, fail_at = Path(sys.argv[1]), int(sys.argv[2])
run = current()

def record(step, batch):
    weight = batch["row_weight"]
    record = {"step": step, "epoch": run.epoch, "ids": batch["id"][weight > 0].tolist()}
    with (folder / f"steps-{os.environ['RANK']}.jsonl").open("a") as log:
        log.write(json.dumps(record) + "\\n")
    if step == fail_at and not (folder / "cured").exists():
        raise ValueError("the user's own mistake")
"""
LIGHTNING = f"""
from pytorch_lightning import Callback, LightningModule, Trainer
{START}
{read_documented("scripts.md", "Lightning")}

class Rows(LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def training_step(self, batch, index):
        record(self.trainer.fit_loop.total_batch_idx + 1, batch)
        losses = (self.linear(batch["id"].float()[:, None] / 1000)[:, 0] - 1.0) ** 2
        loss = (losses * batch["row_weight"]).sum()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

trainer = Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    max_epochs=run.num_epochs,
    callbacks=[RunCheckpoint(run)],
    enable_checkpointing=False,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=folder,
)
module = Rows()
fit(trainer, module, run)
run.report({{"loss": trainer.callback_metrics["loss"].item()}})
"""

HUGGING_FACE = f"""
from transformers import Trainer, TrainerCallback, TrainingArguments
{START}
{read_documented("scripts.md", "Hugging Face's Trainer")}

class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.steps = run.step

    def forward(self, id, row_weight):
        if self.training:
            self.steps += 1
            record(self.steps, {{"id": id, "row_weight": row_weight}})
        losses = (self.linear(id.float()[:, None] / 1000)[:, 0] - 1.0) ** 2
        return {{"loss": (losses * row_weight).sum()}}

arguments = TrainingArguments(
    output_dir=str(folder / "trainer"),
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
    num_train_epochs=run.num_epochs,
    max_steps=int(sys.argv[3]),
    ignore_data_skip=True,
    save_strategy="no",
)
trainer = RunTrainer(run, model=Rows(), args=arguments, callbacks=[RunCheckpoint(run)])
train(trainer, run)
"""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    monkeypatch.syspath_prepend(str(tmp_path))
    return write_table(tmp_path)


def read_steps(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    lines = (folder / f"steps-{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def keep_trained(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps that count in the end: what the second attempt did not do again."""
    numbers = [each["step"] for each in steps]
    [second] = [i for i in range(1, len(numbers)) if numbers[i] <= numbers[i - 1]]
    assert numbers[second] > 1
    return [each for each in steps[:second] if each["step"] < numbers[second]] + steps[second:]


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
