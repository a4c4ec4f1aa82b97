"""Make `world` and its neighbours in `stories` importable for the tests in every folder below.

Tests are no package. `stories` alone is on the path, since its neighbours are named after packages:
one of them is `ray`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "stories"))
