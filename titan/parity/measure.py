"""What runs on the ranks: the oracle on one, the trainer at a layout on all of its own, each compared with the record.

The trainer is driven step by step through the calls that its loop makes: rows from its loader, one all-reduce for the
valid tokens, forward and backward, the norm, the update. Gradients are compared as they are before clipping, weights
after the last step. The oracle gets the initial weights of the one-process trainer, whose bits every layout must have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.func import functional_call

from titan.config import Config, Resolved, resolve
from titan.data import Rows, open_rows
from titan.optim import factor
from titan.parallelisms.initialize import initialize
from titan.parallelisms.parameters import NamedParameter
from titan.parallelisms.shards import local_region, local_tensor
from titan.parity import faults, oracle
from titan.parity.record import INITIAL, LAST, Record, gradients
from titan.parity.verdict import Compared, Measured, OracleRun
from titan.runtime import World
from titan.runtime.device import local_device
from titan.trainer import Trainer

Seen = TypeVar("Seen")
Shard = tuple[str, torch.Size, tuple[slice, ...], Tensor]


def world() -> World:
    """This process, in a group or alone."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return World(rank, rank, size, local_device(rank))


def make_trainer(config: Config, rows: Rows | None = None) -> Trainer:
    """The trainer of this rank. A collective call."""
    here = world()
    return Trainer(resolve(config, here.world_size, here.device.type), here, rows=rows)


def shards(trainer: Trainer, *, grads: bool) -> Iterator[Shard]:
    """(FQN, whole shape, box, values) of each counted parameter or gradient of this rank."""
    for named in trainer.model.parameters:
        tensor = named.parameter.grad if grads else named.parameter
        if named.counted and tensor is not None:
            yield named.fqn, tensor.shape, local_region(tensor), local_tensor(tensor)


def take_step(
    trainer: Trainer, look: Callable[[Trainer], Seen], fault: faults.Fault | None = None
) -> tuple[float, float, float, Seen]:
    """One step of the training loop: (loss, grad norm before clipping, rate, what `look` returned). A collective call.

    Args:
        look: called when gradients are reduced and neither clipped nor used.
    """
    data = next(trainer.loader)
    if fault == "swap_rows":
        faults.swap_rows(trainer, data)
    valid, _stop = trainer.open_step(data)
    if fault == "divide":
        valid = faults.divide(valid)
    share = trainer.forward_backward(data, valid)
    if fault == "skip_reduction":
        faults.skip_reduction(trainer)
    norm = trainer.norm(share)
    if fault == "double_norm":
        norm = faults.double_norm(norm)
    seen = look(trainer)
    rate = trainer.update(norm)
    return trainer.mean_loss(share), norm.item(), rate, seen


def run_layout(
    config: Config, record: Record, steps: int, *, rows: Rows | None = None, fault: faults.Fault | None = None
) -> Measured:
    """Builds the trainer of this rank, takes `steps` steps and compares each. A collective call."""
    trainer = make_trainer(config, rows)
    initial = record.compare(INITIAL, shards(trainer, grads=False))
    scalars, compared = [], []
    for number in range(1, steps + 1):
        loss, norm, _rate, found = take_step(trainer, partial(_beside, record, gradients(number)), fault)
        scalars.append((loss, norm))
        compared.append(found)
    last = record.compare(LAST, shards(trainer, grads=False))
    trainer.loader.close()
    trainer.checkpoints.close()
    return Measured(scalars, initial, compared, last, trainer.progress.tokens)


def _beside(record: Record, name: str, trainer: Trainer) -> list[Compared]:
    return record.compare(name, shards(trainer, grads=True))


def run_oracle(config: Config, record: Record, steps: int) -> OracleRun:
    """Writes the record of this configuration on one process; then runs once more with the rows in reverse, one at a
    time: how far that run is from the first is the noise floor."""
    device = world().device
    resolved = resolve(config, 1, device.type)
    if config.debug.seed is None:
        raise ValueError("debug.seed is not set: the oracle and the layouts would draw different ones")
    rows = open_rows(config.training, config.model, config.debug.seed)
    size = resolved.batch.global_rows
    fetched = [rows.fetch(step * size, size) for step in range(steps)]
    batches = [(torch.from_numpy(inputs).to(device), torch.from_numpy(labels).to(device)) for inputs, labels in fetched]
    weights, forward = plain_model(resolved, config.debug.seed, device)
    training = config.training
    ends = training.steps if training.epochs is None else training.epochs * rows.rows_per_epoch // size
    return judge(config, forward, weights, batches, record, total_steps=min(training.steps, ends))


def judge(
    config: Config,
    forward: oracle.Forward,
    weights: dict[str, Tensor],
    batches: Sequence[tuple[Tensor, Tensor]],
    record: Record,
    *,
    total_steps: int | None = None,
) -> OracleRun:
    """As `run_oracle`, for any forward, weights (trained in place) and batches of (inputs, labels).

    `total_steps` is the length of the run that the schedule knows; `training.steps` where it is None.
    """
    section, steps = config.optimizer, total_steps or config.training.steps
    rates = [section.lr * factor(step, config.lr_scheduler, steps) for step in range(1, len(batches) + 1)]
    record.write(INITIAL, weights)
    scalars = []
    for number, step in enumerate(oracle.train(forward, weights, batches, rates, _hyper(config)), 1):
        scalars.append((step.loss, step.grad_norm))
        record.write(gradients(number), step.grads)
    record.write(LAST, weights)

    again = {fqn: tensor.to(batches[0][0].device) for fqn, tensor in record.read(INITIAL).items()}
    initial = record.compare(INITIAL, _whole(again))
    noisy, compared = [], []
    one_by_one = oracle.train(forward, again, batches, rates, _hyper(config), rows_at_once=1, backwards=True)
    for number, step in enumerate(one_by_one, 1):
        noisy.append((step.loss, step.grad_norm))
        compared.append(record.compare(gradients(number), _whole(step.grads)))
    tokens = sum(inputs.numel() for inputs, _labels in batches)
    noise = Measured(noisy, initial, compared, record.compare(LAST, _whole(again)), tokens)
    return OracleRun(scalars, noise, torch.finfo(_hyper(config).compute).eps)


def _whole(tensors: dict[str, Tensor]) -> Iterator[Shard]:
    for fqn, tensor in tensors.items():
        yield fqn, tensor.shape, local_region(tensor), tensor


def _hyper(config: Config) -> oracle.Hyper:
    section, training = config.optimizer, config.training
    return oracle.Hyper(
        max_norm=training.max_norm,
        optimizer=section.name,
        weight_decay=section.weight_decay,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        compute=getattr(torch, training.mixed_precision_param),
    )


def plain_model(resolved: Resolved, seed: int, device: torch.device) -> tuple[dict[str, Tensor], oracle.Forward]:
    """Initial weights by canonical name, in the masters' type, and the plain module as a function of them."""
    spec, args = resolved.spec, resolved.model_args
    with torch.device("meta"):
        module: Any = spec.build(args)
    tied = {second: canonical for canonical, second in spec.tied(args)}
    module.to_empty(device=device)
    module.to(getattr(torch, resolved.config.training.dtype))
    named = [NamedParameter(fqn, p) for fqn, p in module.named_parameters(remove_duplicate=False) if fqn not in tied]
    initialize(named, lambda fqn: spec.init(args, fqn), seed)
    weights = {one.fqn: one.parameter.detach().clone() for one in named}
    for parameter in module.parameters():
        parameter.data = torch.empty(0, device=device)  # the weights are given at each call

    def forward(w: Any, ids: Tensor) -> Tensor:
        logits: Tensor = functional_call(module, {**w, **{second: w[one] for second, one in tied.items()}}, (ids,))
        return logits

    return weights, forward
