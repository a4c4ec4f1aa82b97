"""Tests are no package: this makes `world` importable for the modules beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
