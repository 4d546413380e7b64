"""Import this package as titan.models only: under a second name it would be a second registry."""

if __name__ != "titan.models":
    raise ImportError(
        "import titan.models, not models: the folder at the top of the repository is reached through titan"
    )
