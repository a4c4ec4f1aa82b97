"""`python -m benchmarks.dataloading`: measure, compare, write the results; see ../README.md."""

import sys

# The processes that measure import this module again, under another name: nothing heavy for them.
if __name__ == "__main__":
    from benchmarks.dataloading.command import main

    sys.exit(main())
