"""``python -m qbayes`` is the command ``qbayes``."""

import sys

from qbayes.cli import main

if __name__ == "__main__":
    sys.exit(main())
