"""`titan train`: one process of a run, alone or one of those that the launcher or torchrun started."""

from __future__ import annotations

import os
from collections.abc import Sequence

from titan.commands.arguments import config_parser, parse


def main(argv: Sequence[str]) -> int:
    """Trains, and returns the exit code (see `titan.runtime.errors`)."""
    options = parse(config_parser("train", "One process of a run: alone, or under torchrun."), argv)
    from titan.runtime.errors import main_with_errors
    from titan.runtime.signals import StopRequest, watch_launcher

    # First of all: until then a signal from a scheduler ends the process, and torch's import takes seconds.
    watch_launcher(StopRequest.install())
    return main_with_errors(lambda: _train(options.config, options.overrides))


def _train(path: str, overrides: Sequence[str]) -> int:
    from titan import config as configuration
    from titan.runtime import log, run_lock
    from titan.runtime.distributed import rank_from_environment
    from titan.runtime.errors import DONE, STOPPED
    from titan.runtime.status import clear_status, read_status

    config = configuration.load(path, overrides)
    rank, _, world_size = rank_from_environment()
    folder = config.job.dump_folder
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    log.start(folder, rank, color=not config.metrics.disable_color_printing)
    dry = config.comm.mode == "fake_backend"
    if rank == 0 and not dry:
        run_lock.hold(folder)
    if not launched and world_size == 1:
        from titan.data import prepare

        clear_status(folder)
        prepare(config.training, config.model)  # shows its progress, so before the streams are turned to the log
    log.own_streams(folder, rank)
    if dry:
        from titan.config import world_size_wanted
        from titan.dry_run import dry_run
        from titan.runtime.device import device_type

        return dry_run(config, int(os.environ.get("NPROC") or world_size_wanted(config, device_type())))
    from titan import trainer

    code = trainer.train(config)
    if launched:
        # To torch elastic anything but 0 is a failure; the launcher reads status.json.
        return DONE if code == STOPPED else code
    status = read_status(folder) or {}
    return STOPPED if code == DONE and status.get("status") == "stopped" else code
