"""Where a standard key means, defaults to or accepts something else here than in torchtitan 0.2.2, and why.

Written into the reference page. A test finds every default that differs, so that none can be missing.
"""

from __future__ import annotations

DEFAULTS: dict[str, str] = {
    "model.hf_assets_path": "unset is the tokenizer that this package ships; there it is a folder of its tests.",
    "training.dataset": "the source text of Python's standard library, which is on every machine; there it is c4_test.",
}
"""Other defaults."""

BEHAVIOURS: dict[str, str] = {
    "optimizer.weight_decay": "leaves norms and biases alone, as in the papers of GPT-3 and Llama; there all decay.",
    "checkpoint.last_save_model_only": "adds an export of the weights; the last checkpoint stays complete, so that a "
    "run can be resumed from it. There the export replaces it.",
    "checkpoint.keep_latest_k": "1 is allowed: an old checkpoint goes only when the new one is complete.",
    "checkpoint.create_seed_checkpoint": "works at any layout and is never needed: initial weights are the same.",
    "checkpoint.folder": "may be a URI.",
    "parallelism.fsdp_reshard_after_forward": "also takes an integer, the size of the group to reshard to.",
    "parallelism.context_parallel_rotate_method": "is honoured in training, and also takes ulysses.",
    "parallelism.pipeline_parallel_schedule": "is spelled exactly so; abstract names of torch are refused.",
    "training.local_batch_size": "caps the rows that a rank holds at once and does not make the batch, unless "
    "global_batch_size is -1; -1 is all rows of a rank.",
    "training.global_batch_size": "is spread over any degrees: the largest divisor within local_batch_size is used.",
    "training.max_norm": "inf switches clipping off.",
    "metrics.enable_tensorboard": "writes all digits, and one value a step after a resume.",
    "metrics.save_for_all_ranks": "adds files of the other ranks; those of rank 0 stay where they are.",
    "comm.mode": "fake_backend takes three steps of rank 0 without a pipeline, and ends.",
    "activation_checkpoint.determinism_check": "takes the two words that torch knows.",
}
"""The same key and default, with another meaning or range."""
