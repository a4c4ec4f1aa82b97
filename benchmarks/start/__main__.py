"""`python -m benchmarks.start`: measure and write the results."""

import sys

from benchmarks.start.command import main

sys.exit(main())
