"""The training loop, readable in one sitting: data, forward and backward, clip, step, log, save.

The trainer knows the parts and their order and nothing else: no model by name, no shard by rank. All ranks take the
same decisions, since each rests on a number that all hold: the step, or the result of an all-reduce. One all-reduce
opens a step (valid tokens, and whether any rank has to stop); that of the norm closes it, and is NaN on all where one
rank's loss or gradient is not finite. What happens then, and other faults, is in `titan.faults`.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from titan.checkpoint import CheckpointManager
from titan.checkpoint.storage import under
from titan.config import Config, ConfigError, Problem, Resolved, changed, dump, numerics_hash, resolve, write_record
from titan.config.resumed import resumed
from titan.data import Rows, open_rows
from titan.data.loader import StepData, StepLoader
from titan.faults import audit, diagnosis, stragglers
from titan.faults.collectives import configure_recorder, traces_path
from titan.faults.hang import Watchdog
from titan.faults.non_finite import NonFinite, NonFinitePolicy, is_bad, is_finite
from titan.faults.time_budget import TimeBudget, started
from titan.metrics import Metrics, describe, run_throughput, step_line
from titan.parallelisms import mesh as meshes
from titan.runtime import (
    PeakMemory,
    StopRequest,
    World,
    agree_on_seed,
    device_name,
    garbage,
    set_determinism,
    set_timeout,
    setup,
    shutdown,
    write_environment,
    write_status,
)
from titan.runtime.errors import DONE, STOPPED
from titan.runtime.profiler import profile
from titan.training_step import Progress, TrainingStep

log = logging.getLogger("titan")


class Trainer(TrainingStep):
    """One process of a run. Making one builds the model and loads the newest checkpoint; a collective call.

    Args:
        resolved: the configuration at this world size.
        world: this process among its peers.
        rows: what to train on; the configured data where None.
        watchdog: told what the run does next, each a sign of progress.
    """

    def __init__(
        self, resolved: Resolved, world: World, *, rows: Rows | None = None, watchdog: Watchdog | None = None
    ) -> None:
        config = self.config = resolved.config
        self.resolved, self.world, self.batch, self._watchdog = resolved, world, resolved.batch, watchdog
        self.folder = Path(config.job.dump_folder)
        self.seed = agree_on_seed(config.debug.seed, world)
        self._own_rows = rows is None
        self.rows = rows if rows is not None else open_rows(config.training, config.model, self.seed)
        self.mesh = meshes.build(resolved.degrees, world.device.type) if world.world_size > 1 else None
        if self.mesh is not None:  # its groups begin with torch's 30 minutes
            set_timeout(config.comm.init_timeout_seconds, self.mesh.groups)
        self._beat("building the model")
        self.build_model(self.seed)
        self.steps = self._planned_steps()
        self.build_optimizer(self.steps)
        self.progress = Progress()
        self.losses = []
        self.policy = NonFinitePolicy(config.training.non_finite, config.training.non_finite_budget)
        self.budget = TimeBudget(config.job.time_limit, started())
        self.times = stragglers.BlockTimes(
            stragglers.blocks_of(self.model.parts, resolved.spec.stages.blocks), world.device
        )
        self._rewound_to: int | None = None
        checkpoint_folder = under(self.folder, config.checkpoint.folder)
        self.checkpoints = CheckpointManager(
            config.checkpoint, checkpoint_folder, self.model.parameters, self.optimizer
        )
        self._beat("loading the checkpoint")
        self._resume()
        self.loader = self._open_loader()

    def _planned_steps(self) -> int:
        """`training.steps`, or fewer where `training.epochs` ends before them."""
        training = self.config.training
        if training.epochs is None:
            return training.steps
        rows = training.epochs * self.rows.rows_per_epoch
        if rows < self.batch.global_rows:
            text = f"gives {rows} rows, fewer than the {self.batch.global_rows} of one step: use a smaller batch."
            raise ConfigError([Problem("training.epochs", text, str(training.epochs))])
        return min(training.steps, rows // self.batch.global_rows)

    def _has_work(self) -> bool:
        epochs, after = self.config.training.epochs, self.progress.rows + self.batch.global_rows
        return self.progress.step < self.steps and (epochs is None or after <= epochs * self.rows.rows_per_epoch)

    def _open_loader(self) -> StepLoader:
        return StepLoader(
            self.rows,
            global_rows=self.batch.global_rows,
            accumulation=self.batch.accumulation,
            batch_ranks=self.resolved.degrees.batch,
            batch_rank=self.mesh.batch_rank if self.mesh else 0,
            position=self.progress.rows,
            prefetch=self.config.training.dataloader.prefetch_factor or 2,
            pin_memory=self.world.device.type != "cpu",
        )

    # -- the run ----------------------------------------------------------------------------------------------------

    def train(self, stop: StopRequest) -> int:
        """Runs to the last step, the end of the data or an agreed stop; returns the exit code."""
        config, world, steps = self.config, self.world, self.steps
        self.metrics = self._open_metrics()
        name = device_name(world.device)
        throughput = run_throughput(self.resolved, world_size=world.world_size, device_name=name)
        memory = PeakMemory(world.device)
        stages = [meshes.coordinates(rank, self.resolved.degrees)["pp"] for rank in range(world.world_size)]
        slow = stragglers.Stragglers(config.metrics.straggler_ratio, stages)
        ending: str | None = None
        automatic_gc = gc.isenabled()
        gc.disable()
        try:
            with profile(config.profiling, self.folder, world, resumed_step=self.progress.step) as profiler:
                while self._has_work():
                    step = self.progress.step + 1
                    logged = step == 1 or step % config.metrics.log_freq == 0 or step == steps
                    self._beat(f"step {step}: data")
                    data = next(self.loader)
                    self._beat(f"step {step}: the start of the step")
                    valid_tokens, ending = self.open_step(data, stop.requested, self.budget.is_spent())
                    if ending is not None:
                        break
                    self._beat(f"step {step}: forward and backward")
                    self.times.active = logged
                    share = self.forward_backward(data, valid_tokens)
                    self._beat(f"step {step}: norm and optimizer")
                    norm = self.norm(share)
                    if is_bad(norm.item()):
                        self._refuse_step(data, share, norm)
                        continue
                    rate = self.update(norm)
                    throughput.step(tokens=self.batch.global_rows * self.rows.seq_len, waited=data.wait_seconds)
                    if logged:
                        values = {
                            "loss": self.mean_loss(share),
                            "grad_norm": norm.item(),
                            "lr": rate,
                            "tokens": self.progress.tokens,
                            "valid_tokens": int(valid_tokens.item()),
                            **throughput.read(steps_left=steps - step),
                            "memory_gib": memory.gib(),
                        }
                        ranks = stragglers.gather(self.times.read(), values["data_seconds"], world.device)
                        values |= stragglers.metrics(ranks)
                        self.metrics.log(step, values)
                        log.info("%s", step_line(step, steps, values))
                        if (said := slow.warning(step, ranks)) is not None:
                            log.warning("%s", said)
                    self._after_step(norm, rate, last=not self._has_work())
                    profiler.step()
            self._beat("the last save")
            self._save_at_end(stopped=ending is not None)
            self.checkpoints.close()
        except Exception:
            self.checkpoints.settle()
            raise
        finally:
            self.metrics.close()
            self.loader.close()
            if automatic_gc:
                gc.enable()
        return self._end(stop.reason if stop.requested else ending, stopped=ending is not None)

    def _beat(self, doing: str) -> None:
        if self._watchdog is not None:
            self._watchdog.beat(doing)

    def _open_metrics(self) -> Metrics:
        return Metrics(
            self.config.metrics,
            self.folder,
            rank=self.world.rank,
            resumed_step=self.progress.step,
            record=self.config.model_dump(),
        )

    def _after_step(self, norm: Tensor, rate: float, *, last: bool) -> None:
        step, config = self.progress.step, self.config
        if config.training.gc_debug or step % config.training.gc_freq == 0 or step == 1:
            garbage.collect(debug=config.training.gc_debug)
        if step == self._first_step:
            set_timeout(config.comm.train_timeout_seconds, self.mesh.groups if self.mesh else ())
            if self._watchdog is not None:
                self._watchdog.set_timeout(config.comm.train_timeout_seconds)
        if config.debug.replica_audit_freq and step % config.debug.replica_audit_freq == 0:
            self._beat(f"step {step}: replica audit")
            scalars = {**asdict(self.progress), "seed": self.seed, "learning rate": rate, "norm": norm.item()}
            audit.audit(step, audit.entries(self.model.parameters, self.optimizer, scalars))
        self._beat(f"step {step}: saving")
        self.checkpoints.poll()
        if last or self.checkpoints.should_save(step):
            if not is_finite(self.model.parameters, self.optimizer, self.world.device):
                self._go_back(diagnosis.report_spoilt(step, self.findings()), spoilt=True)
            elif not last:
                self.save()
        if not self.checkpoints.busy:
            self.budget.save_done()
        self.budget.step_taken()

    # -- steps that are not finite ----------------------------------------------------------------------------------

    def _refuse_step(self, data: StepData, share: Tensor, norm: Tensor) -> None:
        """Says what is not finite, and skips the rows, rewinds past them, or raises NonFinite. A collective call."""
        report = self.explain_non_finite(data, share, norm)
        self.progress.rows += self.batch.global_rows
        self._go_back(report)

    def _go_back(self, report: str, *, spoilt: bool = False) -> None:
        """To the weights before the bad step, or to a checkpoint; the rows up to here stay consumed."""
        action = self.policy.decide(report, spoilt=spoilt)
        self.optimizer.zero_grad()
        if action == "skip":
            log.warning("%s Skipped; number %d of this run.", report, self.policy.count)
            return
        here = self.progress
        # No step could be taken from the checkpoint of the last rewind: it is as bad, and an older one is needed.
        state = self.checkpoints.rewind(before=here.step if self._rewound_to == here.step else None)
        if state is None:
            raise NonFinite(f"{report} There is no checkpoint to rewind to.")
        if self.model.copies is not None:
            self.model.copies.refresh()
        self.progress = Progress(state["train_state"]["step"], here.rows, state["train_state"]["tokens"])
        self._rewound_to = self.progress.step
        log.warning(
            "%s Rewound to step %d, to go on with row %d; number %d of this run.",
            report,
            self.progress.step,
            here.rows,
            self.policy.count,
        )
        self.loader.close()
        self.loader = self._open_loader()
        self.metrics.close()
        self.metrics = self._open_metrics()  # drops the steps that will be taken again

    # -- saving, resuming, ending -----------------------------------------------------------------------------------

    def _save_at_end(self, *, stopped: bool) -> None:
        step = self.progress.step
        if step == 0 or not self.checkpoints.should_save(step, last=True):
            return
        if stopped and not is_finite(self.model.parameters, self.optimizer, self.world.device):
            log.error("step %d is not saved: its state is not finite; the last checkpoint stays", step)
            return
        self.save(last=not stopped)  # a stop goes on later: no export of the weights alone

    def _end(self, reason: str | None, *, stopped: bool) -> int:
        step, status = self.progress.step, "stopped" if stopped else "done"
        if not stopped:
            ahead = self.progress.step < self.steps or self.steps < self.config.training.steps
            reason = f"end of the data after {self.progress.rows} rows" if ahead else None
        if self.world.local_rank == 0:
            saves = self.config.checkpoint.enable
            write_status(self.folder, status, step=step, reason=reason, checkpoints=saves)
        of = f" of {self.steps}" if step <= self.steps else ""  # a finished run, started again with fewer steps
        log.info("%s at step %d%s%s", status, step, of, f" ({reason})" if reason else "")
        return STOPPED if stopped else DONE

    def save_seed(self) -> int:
        """Saves the initial weights as the checkpoint of step 0, unless the run has begun; returns the exit code."""
        if self.progress.step == 0 and self.checkpoints.should_save(0):
            self.save()
        else:
            log.warning(
                "create_seed_checkpoint: the run has a checkpoint of step %d, nothing is saved", self.progress.step
            )
        self.checkpoints.close()
        self.loader.close()
        if self.world.local_rank == 0:
            write_status(self.folder, "done", step=self.progress.step, reason="seed checkpoint")
        return DONE

    def save(self, *, last: bool = False) -> None:
        """Saves the state after the last taken step."""
        progress = self.progress
        self.budget.save_begun()
        state: dict[str, Any] = {
            "train_state": {
                "step": progress.step,
                "tokens": progress.tokens,
                "seed": self.seed,
                "non_finite": self.policy.count,
            },
            "dataloader": {"rows": progress.rows},
            "fingerprints": self._fingerprints,
            "layout": str(self.resolved.degrees),
            "global_rows": self.batch.global_rows,
            "config": dump(self.config),
            "numerics": numerics_hash(self.config),
        }
        self.checkpoints.save(progress.step, state, last=last)

    @property
    def _fingerprints(self) -> dict[str, str]:
        return {"data": self.rows.fingerprint, "tokenizer": self.rows.tokenizer_fingerprint}

    def _resume(self) -> None:
        state = self.checkpoints.load(self._fingerprints)
        if self.model.copies is not None:
            self.model.copies.refresh()
        for line in self._changes_of_the_model(self.checkpoints.weights_from):
            log.warning("initial weights: %s; the shapes are the same, but it is another model", line)
        if state is not None:
            layout, rows = str(self.resolved.degrees), self.batch.global_rows
            for line in resumed(state, self.config, global_rows=rows, layout=layout):
                log.warning("%s", line)
            train_state, data = state.get("train_state", {}), state.get("dataloader", {})
            self._keep_order(train_state.get("seed", self.seed))
            self.policy.count = train_state.get("non_finite", 0)
            self.progress = Progress(
                step=train_state.get("step", 0), rows=data.get("rows", 0), tokens=train_state.get("tokens", 0)
            )
        self._first_step = self.progress.step + 1

    def _changes_of_the_model(self, weights_from: dict[str, Any] | None) -> list[str]:
        """What names and shapes do not show: other heads of equal total width, another rope."""
        text = (weights_from or {}).get("config")
        return [line for line in changed(text, self.config) if line.startswith("model.")] if text else []

    def _keep_order(self, began_with: int) -> None:
        """The data position counts rows in the order of the seed that the run began with: that one stays in force."""
        if began_with == self.seed:
            return
        if self.config.debug.seed is not None:
            log.warning("debug.seed = %d is not used: the run began with seed %d", self.config.debug.seed, began_with)
        self.seed = began_with
        if self._own_rows:
            self.rows = open_rows(self.config.training, self.config.model, began_with)


def train(config: Config) -> int:
    """One process of a run from its configuration to its exit code; joins and leaves the process group."""
    stop = StopRequest.install()
    set_determinism(config.debug)
    folder = Path(config.job.dump_folder)
    configure_recorder(config.comm, folder)
    world = setup(config.comm, cpu_collectives=config.training.enable_cpu_offload)
    traces = traces_path(config.comm, folder, world.rank)
    watchdog = Watchdog(folder, world.rank, traces=traces, timeout=config.comm.init_timeout_seconds)
    resolved = resolve(config, world.world_size, world.device.type)
    for warning in resolved.warnings:
        log.warning("%s", warning)
    if config.job.print_config:
        log.info("%s", dump(config))
    trainer = Trainer(resolved, world, watchdog=watchdog)
    if world.rank == 0:
        write_record(config, trainer.folder)
        write_environment(trainer.folder, world)
    device = f"{device_name(world.device)} ({world.device.type})"
    rows = trainer.rows.rows_per_epoch
    for line in describe(resolved, rows_per_epoch=rows, world_size=world.world_size, device=device):
        log.info("%s", line)
    if trainer.progress.step >= trainer.steps:
        log.info("step %d of %d: this run is finished", trainer.progress.step, trainer.steps)
    code = trainer.save_seed() if config.checkpoint.create_seed_checkpoint else trainer.train(stop)
    watchdog.close()
    shutdown(world)
    return code
