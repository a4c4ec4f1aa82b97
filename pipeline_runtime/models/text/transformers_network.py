"""Networks of embedding models that transformers loads and torch runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from pipeline_runtime.errors import StepError
from pipeline_runtime.models.text.encoding import describe
from pipeline_runtime.steps.checks import broken
from pipeline_runtime.steps.predict.batch_sizes import OutOfMemory

# The message of torch's allocator on a CPU, which raises a plain RuntimeError.
_NO_MEMORY = "not enough memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersNetwork:
    """A network whose last hidden state has the vectors of the tokens; see `embedding.Network`."""

    model: Any
    lock: threading.Lock = field(default_factory=threading.Lock)  # one batch has all cores

    def __call__(
        self, ids_BT: npt.NDArray[np.int64], mask_BT: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        device = self.model.device
        try:
            with self.lock, torch.inference_mode():
                found = self.model(
                    input_ids=torch.from_numpy(ids_BT).to(device),
                    attention_mask=torch.from_numpy(mask_BT).to(device),
                )
                vectors: npt.NDArray[np.float32] = found.last_hidden_state.float().cpu().numpy()
                return vectors
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(str(error).partition("\n")[0]) from error
        except Exception as error:  # a model may raise anything
            if _NO_MEMORY in str(error):
                raise OutOfMemory(str(error).partition("\n")[0]) from error
            raise StepError(f"the model raised {describe(error)}") from error


def load_network(folder: Path) -> TransformersNetwork:
    """Return the network in a folder. Raises a broken rule if it cannot be loaded."""
    transformers.logging.set_verbosity_error()  # errors are raised, so they are not printed too
    transformers.logging.disable_progress_bar()
    has_gpu = torch.cuda.is_available()
    dtype: Any = "auto" if has_gpu else "float32"  # CPUs are slow with bfloat16
    try:
        model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, dtype=dtype)
    except Exception as error:  # the library has no common class of its errors
        raise broken(
            f"must be a model that transformers can load, but: {describe(error)}"
        ) from error
    return TransformersNetwork(model=model.eval().to("cuda" if has_gpu else "cpu"))
