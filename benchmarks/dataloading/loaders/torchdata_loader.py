"""torchdata's StatefulDataLoader: the DataLoader, with an exact place to resume from.

It takes the setting that was found best for the DataLoader, of which it is an extension.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-not-found,unused-ignore]

from benchmarks.dataloading.loaders.torch_loader import TorchLoader


class TorchdataLoader(TorchLoader):
    """Epochs by a StatefulDataLoader."""

    dataloader: ClassVar[Any] = StatefulDataLoader
