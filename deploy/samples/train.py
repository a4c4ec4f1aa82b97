"""An ordinary PyTorch script: logistic regression on a few columns of the impressions.

lastmile sample-data --output build/data
lastmile run -f deploy/samples/script.yaml
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

import pipeline_runtime

DENSE = [f"dense_{index:02}" for index in range(8)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    dist.init_process_group("gloo")  # from RANK, WORLD_SIZE, …, as torchrun sets them
    torch.manual_seed(0)
    model = torch.nn.Linear(len(DENSE), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    run = pipeline_runtime.current()
    if state := run.load():  # None unless the run is resumed
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    wrapped = DistributedDataParallel(model)

    loader = run.loader()  # this rank's rows; the manifest says which and how many a batch
    for _ in run.epochs():
        for batch in loader:
            inputs = torch.stack([batch[name].nan_to_num() for name in DENSE], dim=1)
            losses = binary_cross_entropy_with_logits(
                wrapped(inputs)[:, 0], batch["label"].float(), reduction="none"
            )
            weights = batch["row_weight"]  # 0 for padding, when this rank has no more rows
            loss = (losses * weights).sum() / weights.sum().clamp_min(1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if run.step % 10 == 0:
                run.report({"loss": loss.item()})
            if run.checkpoint_due():  # at intervals, and after Ctrl-C
                run.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    run.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
