"""The checkpoint section. Names are those of torchtitan 0.2.2; the final checkpoint is always a full one here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from titan.config.section import NonEmpty, NonNegativeInt, PositiveInt, Section


class Checkpoint(Section):
    """Sharded checkpoints in the run folder, loaded at any degrees."""

    enable: bool = False
    """Save checkpoints, and go on from the newest one in the run folder."""
    folder: NonEmpty = "checkpoint"
    """Folder of the checkpoints, inside the run folder; or an fsspec URI such as s3://bucket/run/checkpoint."""
    interval: PositiveInt = 500
    """Steps from one save to the next; the last step is always saved."""
    keep_latest_k: NonNegativeInt = 10
    """Checkpoints to keep; 0 keeps all. 1 is allowed here: an old one goes only after the new one is complete."""
    load_step: Annotated[int, Field(ge=-1)] = -1
    """Step to load; -1: the newest complete one."""
    async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "disabled"
    """Write in the background while training goes on, one save at a time. async_with_pinned_mem keeps the buffers that
    it copies to; on accelerators they are pinned."""
    last_save_model_only: bool = True
    """Write an export of the weights alone beside the final checkpoint, which stays complete (in torchtitan it replaces
    it)."""
    export_dtype: Literal["float16", "bfloat16", "float32"] = "float32"
    """Type of the exported weights."""
    initial_load_path: NonEmpty | None = None
    """Checkpoint to begin from, where the run folder has none yet: a path or an fsspec URI."""
    initial_load_model_only: bool = True
    """Take only the weights from `initial_load_path`, and begin at step 0."""
    enable_first_step_checkpoint: bool = False
    """Also save after the first step, to see early that saving works."""
    load_only: bool = False
    """Load, never save."""
    exclude_from_loading: list[Literal["optimizer", "lr_scheduler", "dataloader", "train_state"]] = Field(
        default_factory=list
    )
    """Parts of the state that are not loaded."""
    verify_on_load: bool = False
    """Read all of a checkpoint and compare it with its checksums before loading it; a damaged one is passed over. Sizes
    and the checksums of the small files always are. Our own key."""
    allow_other_data: bool = False
    """Resume although the data or the tokenizer are not those of the checkpoint. Our own key."""
    create_seed_checkpoint: bool = False
    """Save the initial weights as the checkpoint of step 0 and end. Never needed: they are the same at every layout."""
    initial_load_in_hf: bool = False
    """Not supported yet: Hugging Face weights as a start."""
    initial_load_in_hf_quantized: bool = False
    """Not supported."""
    last_save_in_hf: bool = False
    """Not supported yet: an export in Hugging Face format."""
    enable_ft_dataloader_checkpoints: bool = True
    """No effect: torchft is not supported."""
