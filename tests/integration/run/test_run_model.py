"""A module of the user's on two ranks of a cluster, its best checkpoint, and its loading."""

from collections.abc import Callable

import pytest
import torch
from run_support import Clicks, Project, checksum_of, clicks_spec
from warm_lastmile import Lastmile

from pipeline_runtime import load_model
from pipeline_runtime.models.loading import load_run

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.length = length
        self.items = torch.nn.Embedding(16, width)
        self.layers = torch.nn.Linear(1 + width, 1)

    def forward(self, batch):
        assert batch["items"].shape[1] == self.length
        parts = [batch["score"].float()[:, None], self.items(batch["items"]).mean(1)]
        return self.layers(torch.cat(parts, 1)).squeeze(1)

def build(config, schema):
    return Net(schema.field("items").type.list_size, config["width"])
"""


@pytest.mark.parametrize("address", ["auto", pytest.param("local", marks=pytest.mark.slow)])
def test_a_module_trains_on_two_ranks_and_is_loaded(
    address: str,
    clicks: Clicks,
    project: Callable[..., Project],
    on_cluster: Lastmile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = project()
    spec = clicks_spec(run, trainers={"replicas": 2, "gpusPerReplica": 0})
    spec["training"] = {
        "model": "team_net:build",
        "labelColumn": "label",
        "columns": ["score", "items"],
        "batchSize": 100,
        "epochs": 2,
        "config": {"width": 4, "learningRate": 0.1},
        "evaluation": {"where": "user < 40"},
        "checkpoint": {"keep": 1, "keepBest": {"metric": "eval_auc", "mode": "Max"}},
    }
    run.write(spec, {"team_net": NET})

    ended = on_cluster.run(*run.args("--address", address))

    assert ended.code == 0, str(ended)
    summary = run.summary
    assert summary.training.model == "team_net:build"
    assert summary.training.world_size == 2
    assert summary.checksum.rows < checksum_of(clicks.kept, times=2)["rows"]  # some evaluate
    assert summary.training.metrics["eval_auc"] > 0.9  # the label is score > 0.5
    monkeypatch.syspath_prepend(str(run.folder))
    model = load_model(run.output)
    batch = {"score": torch.tensor([0.1, 0.89]), "items": torch.zeros(2, 4, dtype=torch.int64)}
    low, high = model(batch).tolist()
    assert low < high
    best = load_run(run.output, checkpoint="best").header
    assert best.score is not None
    assert best.score.value == max(e.metrics["eval_auc"] for e in summary.training.evaluations)
