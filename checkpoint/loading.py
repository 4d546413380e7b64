"""From the checkpoint folder into the tensors of this run: looks, verifies if that was asked for, compares, fills.

Collective calls, before training or in the middle of it. Rank 0 decides what is loaded, and every check has one
outcome on all ranks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from torch.optim import Optimizer

from titan.checkpoint import commit, source
from titan.checkpoint.agreement import Agreement
from titan.checkpoint.errors import CheckpointRefused
from titan.checkpoint.folders import EXPORTS, manifest_of
from titan.checkpoint.read import read_pieces
from titan.checkpoint.source import Source
from titan.checkpoint.state import MODEL, OPTIMIZER, model_pieces, optimizer_pieces
from titan.checkpoint.storage import Folder, at
from titan.checkpoint.verify import blocks_of, damaged_blocks
from titan.config.schema_checkpoint import Checkpoint
from titan.parallelisms.parameters import NamedParameter

log = logging.getLogger("titan")


class Loader:
    """Loads for `CheckpointManager`, over the same things."""

    def __init__(
        self,
        section: Checkpoint,
        folder: Folder,
        parameters: Sequence[NamedParameter],
        optimizer: Optimizer,
        agreement: Agreement,
    ) -> None:
        self._section = section
        self._folder = folder
        self._parameters = parameters
        self._optimizer = optimizer
        self._agreement = agreement

    def find(self) -> Source | None:
        """The checkpoint to begin from, verified if that was asked for; None for a fresh start.

        Raises:
            CheckpointRefused: see `titan.checkpoint.source.find`.
        """
        damaged: dict[str, str] = {}
        while True:
            found = self._agreement.first(f"looking for a checkpoint in {self._folder}", lambda: self._look(damaged))
            if found is None or not self._section.verify_on_load:
                return found
            problem = self._verify(found.folder)
            if problem is None:
                return found
            damaged[str(found.folder)] = problem

    def newest(self, *, before: int | None) -> Source | None:
        """The newest complete one of the run's own folder, of a step before `before`."""
        doing = f"going back to a checkpoint in {self._folder}"
        return self._agreement.first(doing, lambda: source.newest(self._folder, before=before))

    def check_fingerprints(self, found: Source, fingerprints: Mapping[str, str]) -> None:
        """Raises CheckpointRefused where they differ, unless checkpoint.allow_other_data is set."""
        saved = found.state.get("fingerprints") or {}
        other = [
            f"{name}: {saved.get(name)} in the checkpoint, {mine} in this run"
            for name, mine in fingerprints.items()
            if saved.get(name) != mine
        ]
        if not other:
            return
        text = f"{found.folder} was trained on other data or with another tokenizer ({'; '.join(other)})"
        if not self._section.allow_other_data:
            raise CheckpointRefused(
                f"{text}: go back to them, begin anew in another job.dump_folder, or go on with the new ones by "
                "checkpoint.allow_other_data = true"
            )
        log.warning("checkpoint: %s; loaded all the same, since checkpoint.allow_other_data is set", text)

    def fill(self, found: Source, *, with_optimizer: bool) -> None:
        """Overwrites the weights, and the optimizer state if asked for, once all of it has been compared.

        Raises:
            CheckpointRefused: see `read_pieces`.
        """
        started = time.monotonic()
        pieces = model_pieces(self._parameters)
        if with_optimizer:
            pieces += optimizer_pieces(self._parameters, self._optimizer)
        parts = (MODEL, OPTIMIZER) if with_optimizer else (MODEL,)
        casts = read_pieces(found.folder, pieces, self._agreement, parts=parts, cast=found.weights_only)
        what = "weights, optimizer state and position" if with_optimizer else "weights"
        step, seconds = found.state["step"], time.monotonic() - started
        log.info("checkpoint: loaded %s of step %s from %s in %.1f s", what, step, found.folder, seconds)
        if casts:
            log.warning("checkpoint: %d weights were converted: %s, ...", len(casts), min(casts))

    def _look(self, damaged: Mapping[str, str]) -> Source | None:
        section = self._section
        if not section.load_only:
            commit.recover(self._folder)
            commit.recover(self._folder / EXPORTS)
        return source.find(
            self._folder,
            load_step=section.load_step,
            initial=at(section.initial_load_path) if section.initial_load_path else None,
            initial_weights_only=section.initial_load_model_only,
            damaged=damaged,
        )

    def _verify(self, folder: Folder) -> str | None:
        """What is damaged, or None. Each rank reads its share."""
        started = time.monotonic()

        def share() -> list[str]:
            blocks = blocks_of(manifest_of(folder))
            size, rank = self._agreement.size, self._agreement.rank
            mine = blocks[rank * len(blocks) // size : (rank + 1) * len(blocks) // size]
            return damaged_blocks(folder, mine, folder.parallel_reads)

        lines: list[str] = self._agreement.together(f"verifying {folder}", share, _flat)
        log.info("checkpoint: verified %s in %.1f s", folder, time.monotonic() - started)
        return "; ".join(lines[:5]) or None


def _flat(lines: Sequence[Sequence[str]]) -> list[str]:
    return [line for some in lines for line in some]
