"""`python -m titan.launch`."""

import sys

from titan.launch import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
