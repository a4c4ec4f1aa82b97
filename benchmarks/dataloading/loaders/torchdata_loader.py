"""torchdata's StatefulDataLoader: the DataLoader, with an exact place to resume from.

It extends the DataLoader, and uses the DataLoader's best setting.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-not-found,unused-ignore]

from benchmarks.dataloading.loaders.torch_loader import TorchLoader


class TorchdataLoader(TorchLoader):
    """Epochs by a StatefulDataLoader."""

    dataloader: ClassVar[Any] = StatefulDataLoader
