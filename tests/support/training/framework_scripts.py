"""Scripts that train by Lightning and Hugging Face's Trainer, and what they recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from documented_code import read_documented

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


def read_steps(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    lines = (folder / f"steps-{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def keep_trained(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps that count in the end: what the second attempt did not do again."""
    numbers = [each["step"] for each in steps]
    [second] = [i for i in range(1, len(numbers)) if numbers[i] <= numbers[i - 1]]
    assert numbers[second] > 1
    return [each for each in steps[:second] if each["step"] < numbers[second]] + steps[second:]
