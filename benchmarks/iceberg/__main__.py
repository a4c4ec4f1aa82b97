"""`python -m benchmarks.iceberg`: measure and write the results."""

import sys

from benchmarks.iceberg.command import main

sys.exit(main())
