"""Sharded checkpoints under global names: saved at one layout, loaded at any. Import it as titan.checkpoint only.

`CheckpointManager` is what the trainer drives. The other files are one idea each: `pieces` and `state` (what is
saved, under which key), `write` and `read` (tensors in DCP's format), `metadata` (reading a pickle that cannot run
code), `manifest` and `verify` (checksums), `storage` (local folders and fsspec URIs), `folders` and `commit` (what is
complete, and how a checkpoint becomes visible), `staging` (the copy that training may overwrite), `agreement` (one
outcome on all ranks).
"""

if __name__ != "titan.checkpoint":
    raise ImportError(
        "import titan.checkpoint, not checkpoint: the folder at the top of the repository is reached through titan"
    )

from typing import TYPE_CHECKING, Any

from titan.checkpoint.errors import CheckpointError, CheckpointRefused

if TYPE_CHECKING:
    from titan.checkpoint.manager import CheckpointManager

__all__ = ["CheckpointError", "CheckpointManager", "CheckpointRefused"]


def __getattr__(name: str) -> Any:
    """The manager when it is asked for: `titan checkpoint list` and `verify` answer without torch."""
    if name != "CheckpointManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from titan.checkpoint.manager import CheckpointManager

    return CheckpointManager
