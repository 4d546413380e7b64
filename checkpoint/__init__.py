"""Import this package as titan.checkpoint only: under a second name it would be a second registry."""

if __name__ != "titan.checkpoint":
    raise ImportError("import titan.checkpoint, not checkpoint: the folder at the top of the repository is reached through the titan package")
