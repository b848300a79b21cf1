"""python -m memtrack."""

import signal
import sys

from memtrack.cli import main

if __name__ == "__main__":
    # From here on main() tells of it: memtrack/__init__.py left it to the system while everything was imported.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
