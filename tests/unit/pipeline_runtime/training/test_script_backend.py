"""Ray Train tells a script's ranks the address of rank 0, and does nothing else."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from ray.train.torch import TorchTrainer

from pipeline_runtime.training.ranks.ray_runtime import ScriptConfig


class OneProcessGroup:
    """Workers of Ray Train that are all this process; `calls` counts who was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def execute(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        self.calls.append("all")
        return [function(*args)]

    def execute_single(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        self.calls.append(f"rank {rank}")
        return function(*args)


def test_all_ranks_get_an_address_on_the_node_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    config, workers = ScriptConfig(), OneProcessGroup()

    config.backend_cls().on_start(workers, config)  # type: ignore[arg-type]

    assert workers.calls == ["rank 0", "all"]
    assert os.environ["MASTER_ADDR"]
    assert 0 < int(os.environ["MASTER_PORT"]) < 1 << 16
    assert not dist.is_initialized()


def test_ray_train_takes_the_config_and_shares_the_gpus_of_a_node() -> None:
    trainer = TorchTrainer(lambda config: None, torch_config=ScriptConfig())
    assert isinstance(trainer.backend_config, ScriptConfig)
    assert trainer.backend_config.backend_cls.share_cuda_visible_devices
