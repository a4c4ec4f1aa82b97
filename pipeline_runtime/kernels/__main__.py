"""`python -m pipeline_runtime.kernels`: compile the kernels into numba's cache, ahead of a run."""

from __future__ import annotations

import sys

from pipeline_runtime.kernels import warm

if not warm():
    sys.exit("kernels: numba must be installed for this numpy, got none that imports; install it")
