"""python -m memtrack."""

import sys

from memtrack.cli import main

if __name__ == "__main__":
    sys.exit(main())
