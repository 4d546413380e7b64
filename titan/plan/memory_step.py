"""A step of one pipeline rank in the steady state (from the second step on, when the optimizer's moments are there):
its program played through, with what the pipeline's runtime holds besides.

The runtime receives into buffers that exist for every microbatch at all times, and keeps what it sent until the step is
over. Where the next stage stands on the same rank, what one hands to the other takes such a buffer's place.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from titan.config import Resolved
from titan.parallelisms.stages import SINGLE_STAGE
from titan.plan.activations import trace
from titan.plan.activations_setting import setting_of, split_backward
from titan.plan.facts import Action
from titan.plan.memory_account import BUFFERS, OPTIMIZER, PARAMETERS, UNSHARDED, Ledger, Line, Tally
from titan.plan.memory_stage import StageRun
from titan.plan.memory_units import Sizes
from titan.plan.parameters import itemsize, reshards, stages_of, units
from titan.plan.schedule import Program, csv_programs, pipeline_programs, single_program


def programs_of(resolved: Resolved) -> tuple[Program, ...]:
    """What each pipeline rank computes in one step of the schedule; without a pipeline, in the whole step."""
    parallelism, batch, pp = resolved.config.parallelism, resolved.batch, resolved.degrees.pp
    if pp == 1:
        return single_program(batch.accumulation)
    if parallelism.pipeline_parallel_schedule_csv:
        return csv_programs(Path(parallelism.pipeline_parallel_schedule_csv))
    n_stages = len(stages_of(resolved).ranks)
    return pipeline_programs(parallelism.pipeline_parallel_schedule, pp, n_stages, batch.microbatches)


def sizes_of(resolved: Resolved) -> Sizes:
    """Bytes a value and ranks that shard."""
    training, degrees = resolved.config.training, resolved.degrees
    policy = reshards(resolved.config.parallelism, degrees.pp)
    return Sizes(
        ranks=0 if degrees.world_size == 1 else degrees.fsdp,
        replicas=degrees.dp_replicate,
        kept=0 if policy is False else degrees.fsdp if policy is True else policy,
        compute=itemsize(training.mixed_precision_param),
        reduce=itemsize(training.mixed_precision_reduce),
        master=itemsize(training.dtype),
    )


class RankStep:
    """Plays one pipeline rank's step when made.

    Attributes:
        ledger: live bytes; tally: collectives but those over the whole world.
        stages: the rank's, by number.
        trace: the pieces.
    """

    def __init__(self, resolved: Resolved, rank: int, program: Program, device_type: str) -> None:
        self.resolved, self.rank = resolved, rank
        self.ledger, self.tally = Ledger(), Tally()
        self.sizes, setting = sizes_of(resolved), setting_of(resolved, device_type)
        self.trace = trace(setting)
        parallelism, plan = resolved.config.parallelism, stages_of(resolved)
        self.piped, self._holders = resolved.degrees.pp > 1, plan.ranks
        self._single = (
            self.piped
            and not parallelism.pipeline_parallel_schedule_csv
            and parallelism.pipeline_parallel_schedule in SINGLE_STAGE
        )
        split = trace(setting, split=True) if split_backward(resolved) else None
        self.stages = {
            number: StageRun(
                number,
                len(plan.ranks),
                units(resolved.spec, resolved.model_args, plan.modules[number], tp=resolved.degrees.tp),
                setting=setting,
                sizes=self.sizes,
                trace=self.trace,
                split=split,
                single=self._single,
                ledger=self.ledger,
                tally=self.tally,
            )
            for number in plan.of(rank)
        }
        self._sent = self._input_gradients = 0
        offloaded = resolved.config.training.enable_cpu_offload and device_type != "cpu"
        self._persistent(offloaded)
        if self.piped:
            for _ in range(resolved.batch.accumulation):
                self._pipeline(program)
        else:
            self._plain(program)
        self._optimizer(offloaded)

    def _persistent(self, offloaded: bool) -> None:
        every = [unit for stage in self.stages.values() for unit in stage.units]
        shards = sum(unit.shard_bytes for unit in every)
        batch, training = self.resolved.batch, self.resolved.config.training
        if not offloaded:
            self.ledger.add(PARAMETERS, shards)
            self.ledger.add(OPTIMIZER, 2 * shards + 4 * sum(len(unit.unit.shapes) for unit in every))
        if self.sizes.ranks == 0 and self.sizes.compute != self.sizes.master:
            self.ledger.add(UNSHARDED, sum(unit.gathered_bytes for unit in every))
        if self.piped:
            links = sum((not stage.is_first) + (not stage.is_last) for stage in self.stages.values())
            self.ledger.add(BUFFERS, links * batch.microbatches * self.trace.hidden)
        self.ledger.add("inputs", 2 * 8 * batch.rows * training.seq_len // self.resolved.degrees.cp)

    def _plain(self, program: Program) -> None:
        (stage,) = self.stages.values()
        last = self.resolved.batch.accumulation - 1
        every_time = self.sizes.ranks > 1 and self.sizes.kept > 0  # whole gradients would not fit
        for action in program:
            if action.kind == "F":
                stage.forward(action.microbatch)
            else:
                reduces = self.sizes.ranks > 0 and (every_time or action.microbatch == last)
                stage.backward(action.microbatch, reduces=reduces)

    # -- a pipeline ----------------------------------------------------------------------------------------------------

    def _pipeline(self, program: Program) -> None:
        self.ledger.add(BUFFERS, -self._input_gradients)  # of the pass before
        self._sent = self._input_gradients = 0
        done: Counter[int] = Counter()
        if not self._single:
            for stage in self.stages.values():
                stage.gather_all()
        for action in program:
            stage = self.stages[action.stage]
            self._act(stage, action)
            done[stage.number] += action.kind in ("B", "W")
            finished = done[stage.number] == self.resolved.batch.microbatches and action.kind in ("B", "W")
            if finished and not self._single:
                stage.reduce_all()
        for stage in self.stages.values():
            if self._single:
                stage.reduce_all()
            stage.drop_old_logits()
        self.ledger.add(BUFFERS, -self._sent)

    def _act(self, stage: StageRun, action: Action) -> None:
        number, microbatch = stage.number, action.microbatch
        match action.kind:
            case "F":
                stage.forward(microbatch)
                self._hand(number, number + 1, "hidden states")
                if self._here(number + 1):
                    stage.replace_left(microbatch, self.trace.hidden)
            case "B":
                stage.backward(microbatch, reduces=False)
                self._hand(number, number - 1, "gradients of hidden states")
                self._keep_sent(number, number + 1)
                self._keep_sent(number, number - 1)
            case "I":
                stage.input_backward(microbatch)
                self._hand(number, number - 1, "gradients of hidden states")
                if not stage.is_first and not self._here(number - 1):  # it stays with its buffer until the next step
                    self._input_gradients += self.trace.hidden
                    self.ledger.add(BUFFERS, self.trace.hidden)
            case "W":
                stage.weight_backward(microbatch)
                self._keep_sent(number, number + 1)

    def _here(self, stage: int) -> bool:
        return stage in self.stages

    def _hand(self, source: int, target: int, purpose: str) -> None:
        if 0 <= target < len(self._holders) and not self._here(target):
            self.tally.add(Line("pp", "send", purpose, self.resolved.degrees.pp), self.trace.hidden)

    def _keep_sent(self, source: int, target: int) -> None:
        """What was sent lives on when its stage has done with it; the schedules of one stage a rank wait and let go."""
        if 0 <= target < len(self._holders) and not self._here(target) and not self._single:
            self._sent += self.trace.hidden
            self.ledger.add(BUFFERS, self.trace.hidden)

    # -- the optimizer -------------------------------------------------------------------------------------------------

    def _optimizer(self, offloaded: bool) -> None:
        every = [unit for stage in self.stages.values() for unit in stage.units]
        implementation = self.resolved.config.optimizer.implementation
        more = 0
        if implementation == "foreach":  # the roots of the second moments, all at once
            more = sum(unit.shard_bytes for unit in every)
        elif implementation == "for-loop":  # one tensor at a time: the root and the denominator
            more = 2 * max((size for unit in every for size in unit.tensor_bytes), default=0)
        if not offloaded:
            self.ledger.note("optimizer step", {"temporaries of the optimizer": more})
