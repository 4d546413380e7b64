"""Model, optimizer and one step, without the loop around it: count tokens, forward and backward, clip and update, and
why it went wrong.

`Trainer` is this and the run; the parity tests drive these methods themselves. A step has two all-reduces of its own:
valid tokens before the first forward, the norm after the last backward.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from titan.config import Config, Resolved
from titan.config.layout import Batch
from titan.data import Rows
from titan.data.loader import StepData
from titan.faults import diagnosis
from titan.optim import LRSchedule, StepInBackward, build_optimizer, clip_, global_norm
from titan.parallelisms import parallelize
from titan.parallelisms.context import shard_sequence
from titan.parallelisms.data_parallel import set_gradient_sync
from titan.parallelisms.loss import IGNORE
from titan.parallelisms.mesh import Mesh
from titan.parallelisms.parallelize import Assembly
from titan.runtime import World

log = logging.getLogger("titan")


@dataclass
class Progress:
    """Where the run stands, over the whole job; what a checkpoint stores beside tensors.

    Attributes:
        step: optimizer steps taken.
        rows: rows consumed: the data position. Those of skipped steps count.
        tokens: rows x seq_len of the steps that made these weights.
    """

    step: int = 0
    rows: int = 0
    tokens: int = 0


class TrainingStep:
    """What a step reads and changes.

    Attributes:
        losses: of each forward of the last step, or each microbatch on the last stage, in the order of the rows.
    """

    config: Config
    resolved: Resolved
    world: World
    batch: Batch
    mesh: Mesh | None
    model: Assembly
    rows: Rows
    optimizer: torch.optim.Optimizer
    schedule: LRSchedule
    progress: Progress
    losses: list[Tensor]
    in_backward: StepInBackward | None

    def build_model(self, seed: int) -> None:
        """This rank's share of the model with its initial weights. A collective call."""
        config, resolved = self.config, self.resolved
        self.model = parallelize.build(
            resolved.spec,
            resolved.model_args,
            batch=resolved.batch,
            training=config.training,
            parallelism=config.parallelism,
            activation_checkpoint=config.activation_checkpoint,
            compile=config.compile,
            mesh=self.mesh,
            device=self.world.device,
            seed=seed,
            log=log.info,
            folder=Path(config.job.dump_folder),
        )

    def build_optimizer(self, steps: int) -> None:
        """Over the model, with the learning rates of a run of `steps`."""
        config, parameters = self.config, self.model.parameters
        self.optimizer = build_optimizer(config.optimizer, parameters)
        self.schedule = LRSchedule(self.optimizer, config.lr_scheduler, peak=config.optimizer.lr, steps=steps)
        self.in_backward = None
        if config.optimizer.early_step_in_backward:
            self.in_backward = StepInBackward(parameters, self.optimizer, self.world.device)

    def forward_backward(self, data: StepData, valid_tokens: Tensor) -> Tensor:
        """Forward and backward of all rows of this rank's step; gradients end up reduced in the parameters.

        Returns this rank's share of the loss, 0-dim float32: the mean over the global batch is the sum over
        `owns_loss` ranks.
        """
        self.model.loss.valid_tokens = valid_tokens.clamp(min=1)  # a step with no valid token has loss and gradient 0
        self.losses = []
        if self.in_backward is not None:
            self.schedule.apply(self.progress.step + 1)
        last = self.batch.accumulation - 1
        for index, (inputs, labels) in enumerate(zip(data.inputs, data.labels, strict=True)):
            inputs, labels = self._local(inputs), self._local(labels)  # (rows, seq / cp)
            if self.model.schedule is not None:
                self._pipeline(inputs, labels)
                continue
            set_gradient_sync(self.model.parts, self.model.sync_each or index == last)
            loss = self.model.loss(self.model.parts[0](inputs, self.model.positions), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self.losses.append(loss.detach())
        if self.model.tied is not None:
            self.model.tied.reduce()
        return torch.stack(self.losses).sum() if self.losses else torch.zeros((), device=self.world.device)

    def _pipeline(self, inputs: Tensor, labels: Tensor) -> None:
        losses: list[Tensor] = []
        self.model.schedule.step(
            *([inputs] if self.model.holds_first else []),
            target=labels if self.model.holds_last else None,
            losses=losses if self.model.holds_last else None,
            return_outputs=False,
            positions=self.model.positions,
        )
        self.losses += [loss.detach() for loss in losses]

    def _local(self, tensor: Tensor) -> Tensor:
        if self.mesh is not None and self.mesh.cp is not None:
            balancer = self.config.parallelism.context_parallel_load_balancer
            tensor = shard_sequence(tensor, 1, self.mesh.degrees.cp, self.mesh.cp_rank, balancer)
        return tensor.to(self.world.device, non_blocking=True)

    def norm(self, share: Tensor) -> Tensor:
        """Of the whole gradient, 0-dim float32; NaN where a loss or gradient of some rank is not finite. A collective
        call."""
        if self.in_backward is not None:
            return self.in_backward.norm(share)
        return global_norm(self.model.parameters, self.world.device, loss=share)

    def update(self, norm: Tensor) -> float:
        """Clips, sets the learning rate of this step, and takes it, if the backward has not. Returns the rate."""
        rate = self.schedule.apply(self.progress.step + 1)
        if self.in_backward is None:
            clip_(self.model.parameters, norm, self.config.training.max_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.model.copies is not None:
            self.model.copies.refresh()
        self.progress.step += 1
        self.progress.rows += self.batch.global_rows
        self.progress.tokens += self.batch.global_rows * self.rows.seq_len
        return rate

    def open_step(self, data: StepData, asked: bool = False, out_of_time: bool = False) -> tuple[Tensor, str | None]:
        """The one all-reduce before the first forward: valid tokens of the global batch, and why all shall stop, if
        any rank was asked to or is out of time.
        """
        mine = data.labels.ne(IGNORE).sum() if self._reads_first else torch.zeros((), dtype=torch.int64)
        counts = torch.stack([mine, torch.tensor(asked), torch.tensor(out_of_time)]).to(self.world.device)
        if self.mesh is not None:
            dist.all_reduce(counts)
        _, any_asked, any_out_of_time = counts.tolist()
        if any_asked:
            return counts[0], "asked to stop"
        return counts[0], f"job.time_limit = {self.config.job.time_limit} s" if any_out_of_time else None

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

    def explain_non_finite(self, data: StepData, share: Tensor, norm: Tensor) -> str:
        """What of the step is not finite, by rows, ranks and parameters; before `update`. A collective call."""
        first, every = self.progress.rows, self.batch.global_rows
        mine = first + (self.mesh.batch_rank if self.mesh else 0) * (every // self.resolved.degrees.batch)
        losses, each, taken = self.losses, self.batch.microbatch_size, self.in_backward is not None
        if taken:
            each = self.batch.rows  # the weights have changed: no row can be asked again
        elif self.model.schedule is None:
            batches = [(self._local(x), self._local(y)) for x, y in zip(data.inputs, data.labels, strict=True)]
            losses = diagnosis.repeat_rows(self.model.parts[0], self.model.loss, batches, self.model.positions)
            each = 1
        findings = self.findings(
            rows=diagnosis.rows_of_losses(losses, mine, each), loss_bad=not share.isfinite().item()
        )
        rows = range(first, first + every)
        loss = self.mean_loss(share)
        return diagnosis.report(self.progress.step + 1, loss, norm.item(), rows, findings, taken=taken)

    def findings(self, *, rows: Sequence[int] = (), loss_bad: bool = False) -> list[diagnosis.Finding]:
        """What is not finite in the parameters and gradients of each rank, for all ranks. A collective call."""
        stage = self.mesh.pp_rank if self.mesh else 0
        mine = diagnosis.Finding(self.world.rank, stage, rows=list(rows), loss_bad=loss_bad)
        return diagnosis.gather(diagnosis.examine(mine, self.model.parameters))
