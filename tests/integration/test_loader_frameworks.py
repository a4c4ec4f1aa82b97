"""Lightning and Hugging Face's Trainer train on a loader, and resume at the next batch."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from pipeline_runtime import Pipeline
from pipeline_runtime.batches import Batch
from pipeline_runtime.loader import Loader

NUM_ROWS = 1000
LENGTHS = ("length known", "length unknown")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # Both warn about much that is no concern of the loader, such as deprecated parts of torch.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder = tmp_path_factory.mktemp("rows")
    rows = np.arange(NUM_ROWS)
    table = pa.table({"x": rows.astype(np.float32), "labels": rows % 2})
    pq.write_table(table, folder / "t.parquet", row_group_size=70)
    return Pipeline.read_parquet(f"{folder}/t.parquet")


def with_length(pipeline: Pipeline, name: str) -> Pipeline:
    return pipeline if name == "length known" else pipeline.filter("x >= 0")


def read_steps(log: Path, rank: int) -> list[list[int]]:
    lines = log.with_suffix(f".{rank}").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("devices", "names"), [(1, LENGTHS), (2, LENGTHS[1:])])
def test_lightning_resumes_at_the_next_batch(
    pipeline: Pipeline, tmp_path: Path, devices: int, names: Sequence[str]
) -> None:
    from lightning_rows import RowsModule
    from pytorch_lightning import Trainer
    from pytorch_lightning.callbacks import ModelCheckpoint

    def fit(rows: Pipeline, log: str, checkpoint: str | None = None, **options: Any) -> None:
        trainer = Trainer(
            accelerator="cpu",
            devices=devices,
            strategy="ddp_spawn" if devices > 1 else "auto",
            max_epochs=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            **({"enable_checkpointing": False} | options),
        )
        trainer.fit(RowsModule(rows, tmp_path / log), ckpt_path=checkpoint)
        if "max_steps" not in options:
            assert trainer.callback_metrics["num_rows"] == NUM_ROWS

    for name in names:
        rows = with_length(pipeline, name)
        fit(rows, f"whole {name}")
        ranks = [read_steps(tmp_path / f"whole {name}", rank) for rank in range(devices)]
        for epoch in (slice(0, len(ranks[0]) // 2), slice(len(ranks[0]) // 2, None)):
            seen = [row for steps in ranks for step in steps[epoch] for row in step]
            assert sorted(seen) == list(range(NUM_ROWS))

        kept = ModelCheckpoint(dirpath=tmp_path / name, every_n_train_steps=3, save_top_k=-1)
        options: dict[str, Any] = {"callbacks": [kept], "enable_checkpointing": True}
        fit(rows, name, max_steps=3, **options)
        fit(rows, name, str(next((tmp_path / name).iterdir())))
        for rank, steps in enumerate(ranks):
            assert read_steps(tmp_path / name, rank) == steps


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


class Endless:
    """One epoch after the other, for Hugging Face's Trainer where the length is unknown."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield from self.loader


def test_the_trainer_of_hugging_face_resumes_at_the_next_batch(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class LoaderTrainer(Trainer):
        batches: Any  # a loader, or one without an end

        def get_train_dataloader(self) -> Any:
            return self.batches

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return pipeline.loader(100)

    class LoaderState(TrainerCallback):
        def __init__(self, loader: Loader, stop: int | None) -> None:
            self.loader = loader
            self.stop = stop

        def path(self, args: Any, state: Any) -> Path:
            return Path(args.output_dir) / f"checkpoint-{state.global_step}" / "loader.pt"

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == self.stop:
                control.should_save = control.should_training_stop = True

        def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            torch.save(self.loader.state_dict(), self.path(args, state))

        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step:
                self.loader.load_state_dict(torch.load(self.path(args, state)))

    def train(
        rows: Pipeline, output: Path, *, stop: int | None = None, resumed: int | None = None
    ) -> list[list[float]]:
        model, loader = RowsModel(), rows.loader(100, shuffle=True)
        arguments = TrainingArguments(
            output_dir=str(output),
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            max_steps=20,
            ignore_data_skip=True,
            save_strategy="no",
        )
        trainer = LoaderTrainer(model=model, args=arguments, callbacks=[LoaderState(loader, stop)])
        trainer.batches = loader if rows is pipeline else Endless(loader)
        checkpoint = None if resumed is None else str(output / f"checkpoint-{resumed}")
        trainer.train(resume_from_checkpoint=checkpoint)
        assert trainer.evaluate()["eval_loss"] > 0
        return model.steps

    for name in LENGTHS:
        rows = with_length(pipeline, name)
        whole = train(rows, tmp_path / "whole")
        assert len(whole) == 20
        for epoch in (whole[:10], whole[10:]):
            assert sorted(row for step in epoch for row in step) == list(range(NUM_ROWS))
        for stop in (2, 10, 13):
            output = tmp_path / f"{name} {stop}"
            first = train(rows, output, stop=stop)
            assert first + train(rows, output, resumed=stop) == whole
