"""`titan parity`: whether every layout trains like one process, measured with real processes.

`layouts` reads the short names of a layout, `oracle` is the plain loop that judges, `record` keeps what it computed on
disk, `measure` runs the trainer on a rank and compares each shard with the oracle's, `verdict` joins the ranks and sets
the limits, `run` does one layout after another, `report` shows them. `ranks` holds the processes; the tests use it too.
Only `oracle`, `record` and `measure`, which run on the ranks, import torch.
"""
