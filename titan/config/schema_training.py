"""Sections about data and the training loop: training, its dataloader, validation.

Names are those of torchtitan 0.2.2, plus our own keys about the data. `global_batch_size` is the batch;
`local_batch_size` caps what a rank holds at once (rules in `batching.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from titan.config.section import NonEmpty, NonNegativeInt, PositiveInt, PositiveOrRest, Rule, Section


class Dataloader(Section):
    """How rows are read ahead. They come from a memory-mapped cache, so that workers are not needed."""

    num_workers: NonNegativeInt = 0
    """No effect: reading a row is a slice of a memory map."""
    persistent_workers: bool = False
    """No effect."""
    pin_memory: bool = False
    """No effect: the loader pins its rows where the device gains from it."""
    prefetch_factor: PositiveInt | None = None
    """Steps that the loader keeps ready; unset, 2."""


class Training(Section):
    """Data, batch, length, precision."""

    dataset: NonEmpty = "python_stdlib"
    """Where text comes from: "python_stdlib" (our default; torchtitan's is c4_test), the source text of the running
    Python's standard library; "json", "text" or "parquet" with `dataset_path`; or the name of a Hugging Face
    dataset."""
    dataset_path: NonEmpty | None = None
    """Local file, glob or folder to read instead of the dataset's usual place."""
    dataset_split: NonEmpty = "train"
    """Split of a Hugging Face dataset. Our own key."""
    dataset_config: NonEmpty | None = None
    """Configuration (subset) of a Hugging Face dataset. Our own key."""
    text_column: NonEmpty = "text"
    """Name of the field that holds the text. Our own key."""
    add_bos: bool = True
    """Begin each document with the tokenizer's BOS token, exactly once. Our own key."""
    add_eos: bool = True
    """End each document with the tokenizer's EOS token, exactly once. Our own key."""
    mask_document_boundaries: bool = False
    """Take no loss on the prediction of a document's first token from the end of the one before. Our own key."""
    shuffle: bool = True
    """Draw a new order of the rows each epoch, from `debug.seed`. Our own key."""
    cache_folder: NonEmpty | None = None
    """Folder of tokenized data; unset, the user's cache folder. Our own key."""
    tokenizer_workers: PositiveInt | None = None
    """Processes that tokenize; unset, one a core. Our own key."""
    local_batch_size: PositiveOrRest = 8
    """Most rows that a data-parallel rank puts through one forward: the largest divisor of global / dp that is no
    larger is used. -1: all of them, no gradient accumulation."""
    global_batch_size: PositiveOrRest = -1
    """Rows of one optimizer step over the whole job. -1: local_batch_size x data-parallel ranks, so that the layout
    changes the run."""
    seq_len: PositiveInt = 2048
    """Tokens a row."""
    max_norm: Annotated[float, Field(gt=0.0, allow_inf_nan=True), Rule("a number > 0; inf means no clipping")] = 1.0
    """Largest norm of the whole model's gradient; inf: no clipping."""
    steps: PositiveInt = 10000
    """Optimizer steps."""
    epochs: PositiveInt | None = None
    """Passes over the data after which the run is done, where that comes before `steps`; rows that no longer fill a
    step are left out. Unset: the data repeats for as long as there are steps. Our own key."""
    non_finite: Literal["fail", "skip", "rewind"] = "fail"
    """What to do with a step whose loss or gradient is not finite; the optimizer never sees it. fail: end the run.
    skip: go on with the next rows, weights and momentum untouched, the step number and the learning rate not advanced.
    rewind: load the newest checkpoint and go on with the rows after the bad ones. Our own key."""
    non_finite_budget: PositiveInt = 10
    """Skips or rewinds allowed in the whole run (checkpoints carry the count); one more ends it. Our own key."""
    enable_cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in host memory (accelerators only)."""
    dtype: Literal["bfloat16", "float32"] = "float32"
    """Type of the parameters and the optimizer state."""
    mixed_precision_param: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of the parameters in forward and backward."""
    mixed_precision_reduce: Literal["float32"] = "float32"
    """Type in which gradients are reduced."""
    gc_freq: PositiveInt = 50
    """Steps from one garbage collection to the next; the automatic one is off, so that all ranks collect at once."""
    gc_debug: bool = False
    """Collect after each step and warn about cycles that hold tensors."""
    dataloader: Dataloader = Dataloader()


class Validation(Section):
    """Not supported yet: a validation loss while training."""

    enable: bool = False
    """Not supported yet."""
    dataset: str = "c4_validation"
    """As `training.dataset`."""
    dataset_path: str | None = None
    """As `training.dataset_path`."""
    local_batch_size: PositiveInt = 8
    """Rows a data-parallel rank."""
    seq_len: PositiveInt = 2048
    """Tokens a row."""
    freq: PositiveInt = 10
    """Steps from one validation to the next."""
    steps: PositiveOrRest = -1
    """Batches of one validation; -1: the whole set."""
    dataloader: Dataloader = Dataloader()
