"""What the trainer drives: when to save, saving now or in the background, going on from a checkpoint.

Every rank makes the same calls in the same order. Training continues from the moment `save` returns; in the
background mode the write and the rename happen on a thread with a process group of its own, so a checkpoint becomes
visible without another call, and `poll` tells all ranks in the same step that it failed. `close` waits for it: the
last checkpoint of a run is never lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from titan.checkpoint import jobs
from titan.checkpoint.agreement import Agreement
from titan.checkpoint.folders import EXPORTS
from titan.checkpoint.loading import Loader
from titan.checkpoint.source import Source
from titan.checkpoint.staging import Staging
from titan.checkpoint.state import model_pieces, optimizer_pieces
from titan.checkpoint.storage import Where, at
from titan.config.schema_checkpoint import Checkpoint
from titan.parallelisms.parameters import NamedParameter

log = logging.getLogger("titan")
_NOTABLE_SECONDS = 1.0


class CheckpointManager:
    """Saves and loads one run's model, optimizer and state. Making one is a collective call where a process group
    exists.

    Args:
        section: the checkpoint section of the configuration.
        folder: the run's checkpoint folder: a path, a URI, or what `titan.checkpoint.storage.under` gives.
        parameters: this rank's, as `titan.parallelisms.parameters` lists them.
        optimizer: over the same parameters.
        timeout: how long a rank waits for the slowest writer.
    """

    def __init__(
        self,
        section: Checkpoint,
        folder: Where,
        parameters: Sequence[NamedParameter],
        optimizer: Optimizer,
        *,
        timeout: timedelta = timedelta(minutes=30),
    ) -> None:
        self._section = section
        self._folder = at(folder)
        self._parameters = list(parameters)
        self._optimizer = optimizer
        distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        # One group a thread: collectives of two threads on one group would meet in any order.
        self._groups = [dist.new_group(backend="gloo", timeout=timeout) for _ in range(2)] if distributed else []
        if distributed:  # a run that is finished closes at once: not while a peer is still connecting
            dist.barrier(group=self._groups[0])
        self._agreement = Agreement(self._groups[0] if distributed else None)
        self._background = Agreement(self._groups[1] if distributed else None)
        self._thread = None if section.async_mode == "disabled" else ThreadPoolExecutor(1, "titan-checkpoint")
        self._staging = Staging(keep=section.async_mode == "async_with_pinned_mem")
        self._running: Future[None] | None = None
        self._loader = Loader(section, self._folder, self._parameters, optimizer, self._agreement)
        self._saved: int | None = None
        self._exported: int | None = None
        self.weights_from: dict[str, Any] | None = None

    def should_save(self, step: int, last: bool = False) -> bool:
        """Whether to call `save` after this step; the same on all ranks. The last step always is, unless it is on
        disk already.
        """
        section = self._section
        if not section.enable or section.load_only:
            return False
        if last:
            return self._saved != step or (section.last_save_model_only and self._exported != step)
        due = step % section.interval == 0 or (step == 1 and section.enable_first_step_checkpoint)
        return due and self._saved != step

    def save(self, step: int, state: Mapping[str, Any], *, last: bool = False) -> None:
        """Saves this step, once. A collective call; with async_mode it returns when the copy is made.

        One save is in flight at a time: where the one before is not done yet, training waits for it here, and is told.

        Args:
            state: JSON values that `load` returns; the keys format, step, torch, written and weights_only are the
                manager's.
            last: also write the weights-only export, where checkpoint.last_save_model_only asks for it.

        Raises:
            CheckpointError: this save, or an earlier one in the background, failed; on all ranks.
            TypeError, ValueError: the state is not JSON.
        """
        self._wait_for_the_one_before(step)
        counted = [named for named in self._parameters if named.counted]
        weights = model_pieces(counted)
        todo: list[jobs.Job] = []
        if self._saved != step:
            pieces = [*weights, *optimizer_pieces(counted, self._optimizer)]
            text = jobs.document(step, state, weights_only=False)
            todo.append(jobs.Job(self._folder, pieces, text, self._section.keep_latest_k))
        if last and self._section.last_save_model_only and self._exported != step:
            dtype = getattr(torch, self._section.export_dtype)
            text = jobs.document(step, state, weights_only=True)
            todo.append(jobs.Job(self._folder / EXPORTS, jobs.stored_as(weights, dtype), text, 0))
        if self._thread is None:
            jobs.write(todo, step, lambda: None, self._agreement)
        else:
            staged, ready = jobs.stage(todo, self._staging)
            self._running = self._thread.submit(jobs.write, staged, step, ready, self._background)
        self._saved = step
        if last:
            self._exported = step

    def _wait_for_the_one_before(self, step: int) -> None:
        started = time.monotonic()
        before = self._saved
        self.wait()
        waited = time.monotonic() - started
        if waited > _NOTABLE_SECONDS:
            log.warning(
                "checkpoint: step %d waited %.1f s for the save of step %s to end: writing takes longer than "
                "checkpoint.interval = %d steps",
                step,
                waited,
                before,
                self._section.interval,
            )

    def settle(self, seconds: float = 20.0) -> None:
        """For a run that fails: gives the save in flight some time to end, whatever becomes of it. Not collective, and
        raises nothing: the failure is what the user has to see.
        """
        if self._running is None:
            return
        done, _ = futures.wait([self._running], timeout=seconds)
        log.warning("checkpoint: the save of step %s %s", self._saved, _outcome(self._running) if done else "is lost")

    def poll(self) -> None:
        """Call once a step. Raises CheckpointError if the background save failed, on all ranks in the same step.

        Ranks compare notes only while a save is in flight: one small all-reduce on a gloo group.
        """
        if self._running is None:
            return
        done = torch.tensor(int(self._running.done()))
        if self._groups:
            dist.all_reduce(done, dist.ReduceOp.MIN, group=self._groups[0])
        if done.item():
            self.wait()

    @property
    def busy(self) -> bool:
        """Whether a save is in flight, as far as the last `poll` has told."""
        return self._running is not None

    def wait(self) -> None:
        """Returns when no save is in flight; raises CheckpointError on all ranks if it failed."""
        running, self._running = self._running, None
        if running is not None:
            try:
                running.result()
            except BaseException:
                self._saved = self._exported = None
                raise

    def close(self) -> None:
        """Waits for the save in flight and ends the thread and the groups; raises as `wait` does. Safe to call
        twice.
        """
        try:
            self.wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
            groups, self._groups = self._groups, []
            if dist.is_available() and dist.is_initialized():
                for group in groups:
                    dist.destroy_process_group(group)

    def load(self, fingerprints: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """Loads what this run begins from (see `titan.checkpoint.source`). A collective call, before the first step.

        Args:
            fingerprints: of this run's data and tokenizer, by name; compared with those in the state under
                `fingerprints`.

        Returns:
            The state as it was saved, with `step`, less the keys in checkpoint.exclude_from_loading; None for a
            fresh start and where only weights were taken, which begins at step 0: `weights_from` has their state.

        Raises:
            CheckpointRefused: it is not of this model, optimizer or data, is damaged, or is not trusted.
            CheckpointError: it could not be read.
        """
        if not self._section.enable:
            return None
        source = self._loader.find()
        if source is None:
            log.info("checkpoint: none in %s, a fresh start", self._folder)
            return None
        excluded = set(self._section.exclude_from_loading)
        if not source.weights_only and "dataloader" not in excluded:
            self._loader.check_fingerprints(source, fingerprints or {})
        self._loader.fill(source, with_optimizer=not source.weights_only and "optimizer" not in excluded)
        self._taken(source)
        if source.weights_only:
            self.weights_from = source.state
            return None
        return {key: value for key, value in source.state.items() if key not in excluded}

    def rewind(self, *, before: int | None = None) -> dict[str, Any] | None:
        """Loads this run's own newest checkpoint again, all of it, in the middle of training. A collective call.

        Args:
            before: only checkpoints of earlier steps.

        Returns:
            Its state; None where there is no such checkpoint, and nothing has changed.
        """
        self.wait()
        source = self._loader.newest(before=before)
        if source is None:
            return None
        self._loader.fill(source, with_optimizer=True)
        self._taken(source)
        return source.state

    def _taken(self, source: Source) -> None:
        """What is on disk of the step that was loaded is not to be saved again."""
        if source.own:
            self._saved = source.state["step"]
            self._exported = source.state["step"] if source.exported else None


def _outcome(save: Future[None]) -> str:
    error = save.exception()
    return "was completed" if error is None else f"failed: {error}"
