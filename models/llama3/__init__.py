"""Llama 3, 3.1 and 3.2: registered as `llama3`. Reading this folder's data imports no torch; `model.py` does."""

from titan.models.llama3 import plan
from titan.models.llama3.args import FLAVORS, LlamaArgs
from titan.models.registry import ModelSpec, register

SPEC = register(
    ModelSpec(
        name="llama3",
        args=LlamaArgs,
        flavors=FLAVORS,
        module="titan.models.llama3.model:Llama",
        tp_plan=plan.TP_PLAN,
        stages=plan.STAGES,
        init=plan.init_rule,
        n_layers=lambda args: args.n_layers,
        parameter_count=plan.parameter_count,
        flops_per_token=plan.flops_per_token,
        tied=plan.tied,
        check=plan.check,
    )
)
