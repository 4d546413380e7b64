"""`python -m titan`: the `titan` command."""

import sys

from titan.cli import main

if __name__ == "__main__":
    sys.exit(main())
