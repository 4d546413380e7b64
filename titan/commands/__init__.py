"""The subcommands of `titan`, one module each with `main(argv) -> exit code`.

`titan.cli` imports the one that is asked for. No module here imports torch at the top:
`titan check` and every `--help` answer at once.
"""
