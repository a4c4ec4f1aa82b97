"""`python -m benchmarks.pairs`: measure and write the results."""

import sys

from benchmarks.pairs.command import main

sys.exit(main())
