"""Import this package as titan.parallelisms only: under a second name it would be a second registry."""

if __name__ != "titan.parallelisms":
    raise ImportError(
        "import titan.parallelisms, not parallelisms: the folder at the top of the repository is reached through titan"
    )
