"""The training loop, readable in one sitting: data, forward and backward, clip, step, log, save.

The trainer knows the parts and their order and nothing else: no model by name, no shard by rank. All ranks take the
same decisions, since each rests on a number that all hold: the step, or the result of an all-reduce. One all-reduce
opens a step (valid tokens, and whether any rank was asked to stop); that of the norm closes it.
"""

from __future__ import annotations

import gc
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from titan.checkpoint import CheckpointManager
from titan.checkpoint.storage import under
from titan.config import Config, Resolved, dump, resolve
from titan.data import Rows, open_rows
from titan.data.loader import StepData, StepLoader
from titan.metrics import Metrics, describe, run_throughput, step_line
from titan.optim import LRSchedule, build_optimizer, clip_, global_norm
from titan.parallelisms import mesh as meshes
from titan.parallelisms import parallelize
from titan.parallelisms.context import shard_sequence
from titan.parallelisms.data_parallel import set_gradient_sync
from titan.parallelisms.loss import IGNORE
from titan.runtime import (
    PeakMemory,
    StopRequest,
    World,
    agree_on_seed,
    device_name,
    set_determinism,
    set_timeout,
    setup,
    shutdown,
    write_environment,
    write_status,
)
from titan.runtime.errors import DONE, NOT_FINITE, STOPPED
from titan.runtime.profiler import profile

log = logging.getLogger("titan")


class NonFinite(RuntimeError):
    """The gradient of a step is not finite; raised on every rank before the optimizer saw it."""

    exit_code = NOT_FINITE


@dataclass
class Progress:
    """Where the run stands, over the whole job; what a checkpoint stores beside tensors.

    Attributes:
        step: optimizer steps taken.
        rows: rows consumed: the data position.
        tokens: rows x seq_len.
    """

    step: int = 0
    rows: int = 0
    tokens: int = 0


class Trainer:
    """One process of a run. Making one builds the model and loads the newest checkpoint; a collective call.

    Args:
        resolved: the configuration at this world size.
        world: this process among its peers.
        rows: what to train on; the configured data where None.
    """

    def __init__(self, resolved: Resolved, world: World, *, rows: Rows | None = None) -> None:
        config = self.config = resolved.config
        self.resolved, self.world, self.batch = resolved, world, resolved.batch
        self.folder = Path(config.job.dump_folder)
        self.seed = agree_on_seed(config.debug.seed, world)
        self._own_rows = rows is None
        self.rows = rows if rows is not None else open_rows(config.training, config.model, self.seed)
        self.mesh = meshes.build(resolved.degrees, world.device.type) if world.world_size > 1 else None
        self.model = parallelize.build(
            resolved.spec,
            resolved.model_args,
            batch=resolved.batch,
            training=config.training,
            parallelism=config.parallelism,
            activation_checkpoint=config.activation_checkpoint,
            compile=config.compile,
            mesh=self.mesh,
            device=world.device,
            seed=self.seed,
            log=log.info,
            folder=self.folder,
        )
        self.optimizer = build_optimizer(config.optimizer, self.model.parameters)
        steps = config.training.steps
        self.schedule = LRSchedule(self.optimizer, config.lr_scheduler, peak=config.optimizer.lr, steps=steps)
        self.progress = Progress()
        checkpoint_folder = under(self.folder, config.checkpoint.folder)
        self.checkpoints = CheckpointManager(
            config.checkpoint, checkpoint_folder, self.model.parameters, self.optimizer
        )
        self._resume()
        degrees = resolved.degrees
        self.loader = StepLoader(
            self.rows,
            global_rows=self.batch.global_rows,
            accumulation=self.batch.accumulation,
            batch_ranks=degrees.batch,
            batch_rank=self.mesh.batch_rank if self.mesh else 0,
            position=self.progress.rows,
            pin_memory=world.device.type != "cpu",
        )

    # -- one step ---------------------------------------------------------------------------------------------------

    def forward_backward(self, data: StepData, valid_tokens: Tensor) -> Tensor:
        """Forward and backward of all rows of this rank's step; gradients end up reduced in the parameters.

        Returns this rank's share of the loss, 0-dim float32: the mean over the global batch is the sum over
        `owns_loss` ranks.
        """
        self.model.loss.valid_tokens = valid_tokens.clamp(min=1)  # a step with no valid token has loss and gradient 0
        total = torch.zeros((), device=self.world.device)
        last = self.batch.accumulation - 1
        for index, (inputs, labels) in enumerate(zip(data.inputs, data.labels, strict=True)):
            inputs, labels = self._local(inputs), self._local(labels)  # (rows, seq / cp)
            if self.model.schedule is not None:
                total += self._pipeline(inputs, labels)
                continue
            set_gradient_sync(self.model.parts, self.model.sync_each or index == last)
            loss = self.model.loss(self.model.parts[0](inputs, self.model.positions), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        if self.model.tied is not None:
            self.model.tied.reduce()
        return total

    def _pipeline(self, inputs: Tensor, labels: Tensor) -> Tensor:
        losses: list[Tensor] = []
        self.model.schedule.step(
            *([inputs] if self.model.holds_first else []),
            target=labels if self.model.holds_last else None,
            losses=losses if self.model.holds_last else None,
            return_outputs=False,
            positions=self.model.positions,
        )
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=self.world.device)

    def _local(self, tensor: Tensor) -> Tensor:
        if self.mesh is not None and self.mesh.cp is not None:
            balancer = self.config.parallelism.context_parallel_load_balancer
            tensor = shard_sequence(tensor, 1, self.mesh.degrees.cp, self.mesh.cp_rank, balancer)
        return tensor.to(self.world.device, non_blocking=True)

    def update(self, norm: Tensor) -> float:
        """Clips, sets the learning rate of this step, and takes it. Returns the rate."""
        clip_(self.model.parameters, norm, self.config.training.max_norm)
        rate = self.schedule.apply(self.progress.step + 1)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.model.copies is not None:
            self.model.copies.refresh()
        self.progress.step += 1
        self.progress.rows += self.batch.global_rows
        self.progress.tokens += self.batch.global_rows * self.rows.seq_len
        return rate

    def open_step(self, data: StepData, stop_requested: bool = False) -> tuple[Tensor, bool]:
        """The one all-reduce before the first forward: valid tokens of the global batch, and whether any rank shall
        stop.
        """
        mine = data.labels.ne(IGNORE).sum() if self._reads_first else torch.zeros((), dtype=torch.int64)
        counts = torch.stack([mine, torch.tensor(int(stop_requested))]).to(self.world.device)
        if self.mesh is not None:
            dist.all_reduce(counts)
        return counts[0], bool(counts[1].item())

    @property
    def _reads_first(self) -> bool:
        """Whether this rank's rows are counted: one rank a batch rank."""
        return self.mesh is None or (self.mesh.pp_rank == self.mesh.cp_rank == self.mesh.tp_rank == 0)

    def mean_loss(self, share: Tensor) -> float:
        """The loss of the step over the whole job. A collective call; waits for the device."""
        if self.mesh is not None:
            owns = self.model.holds_last and self.mesh.tp_rank == 0
            share = share.clone() if owns else torch.zeros_like(share)
            dist.all_reduce(share)
        return share.item()

    # -- the run ----------------------------------------------------------------------------------------------------

    def train(self, stop: StopRequest) -> int:
        """Runs to the last step or to an agreed stop; returns the exit code."""
        config, world = self.config, self.world
        steps, log_freq = config.training.steps, config.metrics.log_freq
        metrics = Metrics(config.metrics, self.folder, enabled=world.rank == 0, resumed_step=self.progress.step)
        name = device_name(world.device)
        throughput = run_throughput(self.resolved, world_size=world.world_size, device_name=name)
        memory = PeakMemory(world.device)
        stopped = False
        automatic_gc = gc.isenabled()
        gc.disable()
        try:
            with profile(config.profiling, self.folder, world, resumed_step=self.progress.step) as profiler:
                while self.progress.step < steps and not stopped:
                    data = next(self.loader)
                    valid_tokens, stopped = self.open_step(data, stop.requested)
                    if stopped:
                        break
                    share = self.forward_backward(data, valid_tokens)
                    norm = global_norm(self.model.parameters, world.device)
                    self._refuse_non_finite(norm)
                    rate = self.update(norm)
                    step = self.progress.step
                    throughput.step(tokens=self.batch.global_rows * self.rows.seq_len, waited=data.wait_seconds)
                    if step == 1 or step % log_freq == 0 or step == steps:
                        values = {
                            "loss": self.mean_loss(share),
                            "grad_norm": norm.item(),
                            "lr": rate,
                            "tokens": self.progress.tokens,
                            "valid_tokens": int(valid_tokens.item()),
                            **throughput.read(steps_left=steps - step),
                            "memory_gib": memory.gib(),
                        }
                        metrics.log(step, values)
                        log.info("%s", step_line(step, steps, values))
                    self._after_step(last=step == steps)
                    profiler.step()
            if self.progress.step > 0 and self.checkpoints.should_save(self.progress.step, last=True):
                self.save(last=not stopped)  # a stop goes on later: no export of the weights alone
            self.checkpoints.close()
        finally:
            metrics.close()
            self.loader.close()
            if automatic_gc:
                gc.enable()
        status = "stopped" if stopped else "done"
        if world.local_rank == 0:
            # Where the request reached another rank only, this one has learned of it by the all-reduce.
            why = stop.reason or ("another rank was asked to stop" if stopped else None)
            write_status(self.folder, status, step=self.progress.step, reason=why)
        reason = f" ({stop.reason})" if stop.reason else ""
        log.info("%s at step %d of %d%s", status, self.progress.step, steps, reason if stopped else "")
        return STOPPED if stopped else DONE

    def _after_step(self, *, last: bool) -> None:
        step, training = self.progress.step, self.config.training
        if training.gc_debug or step % training.gc_freq == 0 or step == 1:
            gc.collect()
        if step == self._first_step:
            set_timeout(self.config.comm.train_timeout_seconds, self.mesh.groups if self.mesh else ())
        self.checkpoints.poll()
        if not last and self.checkpoints.should_save(step):
            self.save()

    def save(self, *, last: bool = False) -> None:
        """Saves the state after the last taken step."""
        progress = self.progress
        state: dict[str, Any] = {
            "train_state": {"step": progress.step, "tokens": progress.tokens, "seed": self.seed},
            "dataloader": {"rows": progress.rows},
            "fingerprints": self._fingerprints,
            "layout": str(self.resolved.degrees),
            "config": dump(self.config),
        }
        self.checkpoints.save(progress.step, state, last=last)

    @property
    def _fingerprints(self) -> dict[str, str]:
        return {"data": self.rows.fingerprint, "tokenizer": self.rows.tokenizer_fingerprint}

    def _resume(self) -> None:
        state = self.checkpoints.load(self._fingerprints)
        if self.model.copies is not None:
            self.model.copies.refresh()
        if state is not None:
            train_state, data = state.get("train_state", {}), state.get("dataloader", {})
            self._keep_order(train_state.get("seed", self.seed))
            self.progress = Progress(
                step=train_state.get("step", 0), rows=data.get("rows", 0), tokens=train_state.get("tokens", 0)
            )
        self._first_step = self.progress.step + 1

    def _keep_order(self, began_with: int) -> None:
        """The data position counts rows in the order of the seed that the run began with: that one stays in force."""
        if began_with == self.seed:
            return
        if self.config.debug.seed is not None:
            log.warning("debug.seed = %d is not used: the run began with seed %d", self.config.debug.seed, began_with)
        self.seed = began_with
        if self._own_rows:
            self.rows = open_rows(self.config.training, self.config.model, began_with)

    def _refuse_non_finite(self, norm: Tensor) -> None:
        value = norm.item()
        if not math.isfinite(value):
            raise NonFinite(
                f"step {self.progress.step + 1}: the gradient norm is {value}; the optimizer has not taken this step. "
                f"Rows {self.progress.rows} to {self.progress.rows + self.batch.global_rows - 1} were in it. "
                "Lower optimizer.lr or raise lr_scheduler.warmup_steps; start again to go on from the last checkpoint."
            )


def train(config: Config) -> int:
    """One process of a run from its configuration to its exit code; joins and leaves the process group."""
    stop = StopRequest.install()
    set_determinism(config.debug)
    world = setup(config.comm, cpu_collectives=config.training.enable_cpu_offload)
    resolved = resolve(config, world.world_size, world.device.type)
    for warning in resolved.warnings:
        log.warning("%s", warning)
    if config.job.print_config:
        log.info("%s", dump(config))
    trainer = Trainer(resolved, world)
    if world.rank == 0:
        (trainer.folder / "config.toml").write_text(dump(config), encoding="utf-8")
        write_environment(trainer.folder, world)
    device = f"{device_name(world.device)} ({world.device.type})"
    rows = trainer.rows.rows_per_epoch
    for line in describe(resolved, rows_per_epoch=rows, world_size=world.world_size, device=device):
        log.info("%s", line)
    if trainer.progress.step >= config.training.steps:
        log.info("step %d of %d: this run is finished", trainer.progress.step, config.training.steps)
    code = trainer.train(stop)
    shutdown(world)
    return code
