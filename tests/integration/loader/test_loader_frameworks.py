"""Lightning and Hugging Face's Trainer train on a loader, and resume at the next batch."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from documented_code import run_documented
from torch import nn

from pipeline_runtime import Pipeline

NUM_ROWS = 1000

# Both warn about much that is no concern of the loader, such as deprecated parts of torch.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    rows = np.arange(NUM_ROWS)
    table = pa.table({"x": rows.astype(np.float32), "labels": rows % 2})
    pq.write_table(table, folder / "t.parquet", row_group_size=70)
    return folder


def make_pipeline(folder: Path, *, knows_length: bool) -> Pipeline:
    pipeline = Pipeline.read_parquet(f"{folder}/t.parquet")
    return pipeline if knows_length else pipeline.filter("x >= 0")


@pytest.mark.parametrize(
    ("knows_length", "devices"),
    [
        pytest.param(True, 1, id="length known"),
        pytest.param(False, 1, id="length unknown", marks=pytest.mark.slow),
        # Each of two trainings spawns two processes, which import torch and Lightning.
        pytest.param(False, 2, id="two ranks", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_lightning_resumes_at_the_next_batch(
    folder: Path, tmp_path: Path, knows_length: bool, devices: int
) -> None:
    from lightning_rows import CountingRowsModule, RowsModule
    from pytorch_lightning import Trainer
    from pytorch_lightning.callbacks import ModelCheckpoint

    pipeline = make_pipeline(folder, knows_length=knows_length)
    module = RowsModule if knows_length else CountingRowsModule

    kept = ModelCheckpoint(
        dirpath=tmp_path / "kept", filename="{step}", every_n_train_steps=3, save_top_k=-1
    )

    def fit(log: str, checkpoint: Path | None = None) -> list[list[list[int]]]:
        """Train, and return the rows of each step of each rank."""
        trainer = Trainer(
            accelerator="cpu",
            devices=devices,
            strategy="ddp_spawn" if devices > 1 else "auto",
            max_epochs=2,
            callbacks=[kept],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module(pipeline, tmp_path / log), ckpt_path=checkpoint)
        assert trainer.callback_metrics["num_rows"] == NUM_ROWS
        logs = [(tmp_path / f"{log}.{rank}").read_text() for rank in range(devices)]
        return [[json.loads(line) for line in text.splitlines()] for text in logs]

    whole = fit("whole")
    middle = len(whole[0]) // 2
    for epoch in (slice(middle), slice(middle, None)):
        rows = [row for steps in whole for row in chain.from_iterable(steps[epoch])]
        assert sorted(rows) == list(range(NUM_ROWS))
    assert fit("resumed", tmp_path / "kept" / "step=3.ckpt") == [steps[3:] for steps in whole]


class RowsModel(nn.Module):
    """A model for Hugging Face's Trainer that keeps the rows of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.steps: list[list[float]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.steps.append(x.tolist())
        logits = self.linear(x[:, None] / 1000)[:, 0]
        return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}


@pytest.mark.parametrize(
    ("knows_length", "stops"),
    [
        pytest.param(True, [13], id="length known"),
        # 10: at the end of an epoch
        pytest.param(True, [2, 10], id="other places", marks=pytest.mark.slow),
        pytest.param(False, [2, 10, 13], id="length unknown", marks=pytest.mark.slow),
    ],
)
def test_the_trainer_of_hugging_face_resumes_at_the_next_batch(
    folder: Path, tmp_path: Path, knows_length: bool, stops: list[int]
) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    pipeline = make_pipeline(folder, knows_length=knows_length)
    names = {"Trainer": Trainer, "TrainerCallback": TrainerCallback, "Path": Path, "torch": torch}
    documented = run_documented("loader.md", "Hugging Face's Trainer", **names)

    class Stop(TrainerCallback):
        def __init__(self, step: int | None) -> None:
            self.step = step

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == self.step:
                control.should_save = control.should_training_stop = True

    def train(
        output: Path, *, stop: int | None = None, resumed: int | None = None
    ) -> list[list[float]]:
        model, loader = RowsModel(), pipeline.loader(100, shuffle=True)
        arguments = TrainingArguments(
            output_dir=str(output),
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            max_steps=20,
            ignore_data_skip=True,
            save_strategy="no",
        )
        trainer = documented["LoaderTrainer"](
            loader if knows_length else documented["Endless"](loader),
            pipeline.loader(100),
            model=model,
            args=arguments,
            callbacks=[documented["LoaderState"](loader), Stop(stop)],
        )
        checkpoint = None if resumed is None else str(output / f"checkpoint-{resumed}")
        trainer.train(resume_from_checkpoint=checkpoint)
        assert trainer.evaluate()["eval_loss"] > 0
        return model.steps

    whole = train(tmp_path / "whole")
    assert len(whole) == 20
    for epoch in (whole[:10], whole[10:]):
        assert sorted(chain.from_iterable(epoch)) == list(range(NUM_ROWS))
    for stop in stops:
        output = tmp_path / f"{stop}"
        assert train(output, stop=stop) + train(output, resumed=stop) == whole
