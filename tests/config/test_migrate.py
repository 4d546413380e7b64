"""Files of older names become files of today: same meaning, comments and order kept, all of it said."""

from __future__ import annotations

from pathlib import Path

import pytest

from titan.config import Config, load
from titan.config.migrate import migrate
from titan.config.old_names import COMPUTED, GONE, INVERSE, SAME, new_place
from titan.config.reference import fields
from titan.config.unsupported import INSTEAD

pytestmark = pytest.mark.quick

OLD = """\
# a run of 2024
[job]
dump_folder = "./outputs"  # where
print_args = true

[metrics]
# only the first speaks
rank_0_only = true
enable_color_printing = true # colours

[model]
flavor = "8B"
norm_type = "rmsnorm"
tokenizer_path = "./assets/tokenizer"

[optimizer]
lr = 3e-4
fused = true # fast

[training]
# per rank
batch_size = 8   # rows
seq_len = 8192
warmup_steps = 200  # of the schedule
steps = 1000
data_parallel_shard_degree = -1
tensor_parallel_degree = 2  # tp
compile = false
seed = 3

[experimental]
pipeline_parallel_degree = 2
pipeline_parallel_microbatches = 4
pipeline_parallel_split_points = ["layers.30"]

[checkpoint]
enable_checkpoint = true
interval_type = "steps"
interval = 50
model_weights_only = false

[float8]
enable_float8_linear = false
"""


def test_a_whole_file_of_older_names_loads_to_what_it_meant(tmp_path: Path) -> None:
    done = migrate(OLD)
    path = tmp_path / "new.toml"
    path.write_text(done.text)
    config = load(path)
    assert (config.training.local_batch_size, config.lr_scheduler.warmup_steps, config.debug.seed) == (8, 200, 3)
    parallelism = config.parallelism
    assert (parallelism.data_parallel_shard_degree, parallelism.tensor_parallel_degree) == (-1, 2)
    assert (parallelism.pipeline_parallel_degree, parallelism.pipeline_parallel_microbatch_size) == (2, 2)
    parts = parallelism.module_fqns_per_model_part
    assert parts is not None
    assert parts[0][:2] == ["tok_embeddings", "layers.0"]
    assert parts[1] == ["layers.30", "layers.31", "norm", "output"]
    assert (config.job.print_config, config.metrics.save_for_all_ranks) == (True, False)
    assert config.metrics.disable_color_printing is False
    assert (config.checkpoint.enable, config.checkpoint.last_save_model_only) == (True, False)
    assert (config.optimizer.implementation, config.compile.enable) == ("fused", False)
    assert config.model.hf_assets_path == "./assets/tokenizer"


def test_comments_stay_with_their_keys_and_renamed_keys_in_their_line() -> None:
    text = migrate(OLD).text
    assert text.startswith('# a run of 2024\n[job]\ndump_folder = "./outputs"  # where\nprint_config = true\n')
    assert "# per rank\nlocal_batch_size = 8   # rows\nseq_len = 8192\n" in text
    assert "warmup_steps = 200  # of the schedule\n" in text
    assert "tensor_parallel_degree = 2  # tp\n" in text
    assert 'implementation = "fused" # fast\n' in text
    assert "disable_color_printing = false # colours\n" in text
    assert "[experimental]" not in text
    assert "[float8]" not in text


def test_everything_that_changed_is_said_and_nothing_else() -> None:
    done = migrate(OLD)
    said = "\n".join(done.changes)
    for old in {*SAME, *INVERSE, *GONE, *COMPUTED}:
        section, _, name = old.rpartition(".")
        present = f"\n{name} = " in OLD.partition(f"[{section}]")[2].partition("\n[")[0]
        assert present == (old in said), old
    (left,) = done.left
    assert "a folder with tokenizer.json" in left
    again = migrate(done.text)
    assert (again.text, again.changes, again.left) == (done.text, [], [])


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('[checkpoint]\ninterval_type = "seconds"\n', "checkpoint.interval is in steps; set it anew"),
        ("[job]\nuse_for_integration_test = true\n", "job.use_for_integration_test: unknown key"),
        ("[experimental]\npipeline_parallel_microbatches = 3\n", "does not divide the local batch of 8 rows"),
        ('[experimental]\npipeline_parallel_split_points = ["blocks.3"]\n', "name the modules of each stage"),
        ("[training]\nbatch_size = 2\nlocal_batch_size = 4\n", "training.local_batch_size is set already, and stays 4"),
        ("[training]\nseed = 2\n[debug]\nseed = 4\n", "debug.seed is set already, and stays 4"),
    ],
)
def test_what_has_no_counterpart_is_said(text: str, left: str) -> None:
    (found,) = migrate(text).left
    assert left in found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[optimizer]\nfused = false\n", 'implementation = "foreach"'),
        ("[optimizer]\nforeach = false\n", 'implementation = "for-loop"'),
        ("[optimizer]\nfused = true\nforeach = true\n", 'implementation = "fused"'),
        ("[metrics]\nrank_0_only = false\n", "save_for_all_ranks = true"),
        ("[float8]\nenable_float8_linear = true\n", 'converters = ["quantize.linear.float8"]'),
        ('[float8]\nfilter_fqns = ["output"]\n', '[quantize.linear.float8]\nfilter_fqns = ["output"]'),
        (
            "[training]\nlocal_batch_size = 6\n[experimental]\npipeline_parallel_microbatches = 3\n",
            "pipeline_parallel_microbatch_size = 2",
        ),
    ],
)
def test_values_that_mean_the_same_in_other_words_are_computed(text: str, wanted: str) -> None:
    assert wanted in migrate(text).text


def test_a_file_of_today_stays_as_it_is() -> None:
    for path in sorted((Path(__file__).parents[2] / "configs").rglob("*.toml")):
        text = path.read_text()
        assert migrate(text).text == text
        assert migrate(text).changes == []


def test_old_names_lead_to_keys_that_exist_and_each_is_answered() -> None:
    keys = {key for key, _ in fields(Config)}
    assert {*SAME.values(), *INVERSE.values()} <= keys
    for old in {*SAME, *INVERSE, *GONE, *COMPUTED}:
        assert new_place(old)
    assert "model.converters" in INSTEAD
