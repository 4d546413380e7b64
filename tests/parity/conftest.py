"""A tiny run as a user has it: a TOML file and a text."""

from pathlib import Path

import pytest

TOKENIZER = Path(__file__).parent.parent / "assets" / "tokenizer251"
CONFIG = """
[job]
dump_folder = "{folder}/run"
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "{tokenizer}"
[model.args]
dim = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
hidden_dim = 48
[training]
dataset = "text"
dataset_path = "{folder}/text.txt"
cache_folder = "{folder}/cache"
seq_len = 16
global_batch_size = 8
local_batch_size = -1
steps = 20
mixed_precision_param = "float32"
[optimizer]
eps = 1e-6
lr = 1e-3
[lr_scheduler]
warmup_steps = 2
[activation_checkpoint]
mode = "none"
[parallelism]
data_parallel_shard_degree = 8
[checkpoint]
enable = true
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The file; it asks for eight processes and for checkpoints, which parity must not heed."""
    words = " ".join(f"w{i * i * i % 248}" for i in range(2000))  # words of the tokenizer
    (tmp_path / "text.txt").write_text(words, encoding="utf-8")
    path = tmp_path / "tiny.toml"
    path.write_text(CONFIG.format(folder=tmp_path, tokenizer=TOKENIZER), encoding="utf-8")
    return path
