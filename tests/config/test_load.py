"""What a file may say, and what is said about it where it may not: key, value, rule, remedy, all at once."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from titan.config import Config, ConfigError, dump, load

pytestmark = pytest.mark.quick
CONFIGS = Path(__file__).parents[2] / "configs"


def problems(folder: Path, text: str, *arguments: str) -> list[str]:
    """Lines of the error that loading `text` gives."""
    path = folder / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, arguments)
    return str(caught.value).splitlines()


# (section, line, what the message must contain)
BAD_LINES = [
    # C1: misspelt, wrong section, wrong case, hyphen, one level too deep
    ("parallelism", "tensor_paralel_degree = 2", "Did you mean parallelism.tensor_parallel_degree?"),
    ("parallelism", "Tensor_Parallel_Degree = 2", "Did you mean parallelism.tensor_parallel_degree?"),
    ("parallelism", "tensor-parallel-degree = 2", "Did you mean parallelism.tensor_parallel_degree?"),
    ("training", "lr = 1e-3", "Did you mean optimizer.lr?"),
    ("training", "log_freq = 1", "Did you mean metrics.log_freq?"),
    ("paralellism", "tensor_parallel_degree = 2", "unknown section. Did you mean parallelism?"),
    ("Training", "steps = 2", "unknown section. Did you mean training?"),
    ("training.dataloader", "seq_len = 2", "Did you mean training.seq_len?"),
    ("training", "zzzzzz = 2", "unknown key. training has: add_bos,"),
    # C3: numbers of the wrong kind
    ("optimizer", 'lr = "1e-4"', "must be a number > 0. Write the number without quotes: 1e-4."),
    ("optimizer", "lr = nan", "optimizer.lr = nan: must be a number > 0."),
    ("optimizer", "lr = inf", "optimizer.lr = inf: must be a number > 0."),
    ("optimizer", "lr = 0.0", "must be a number > 0."),
    ("optimizer", "lr = true", "must be a number > 0."),
    ("optimizer", "beta1 = 1.0", "must be a number >= 0 and < 1."),
    ("optimizer", "weight_decay = -0.1", "must be a number >= 0."),
    ("training", "steps = 10.0", "must be an integer >= 1. Write 10."),
    ("training", "steps = 10.5", "must be an integer >= 1."),
    ("training", "steps = true", "training.steps = true: must be an integer >= 1."),
    ("training", 'steps = "10"', "Write the number without quotes: 10."),
    ("training", "steps = 2024-01-01", "must be an integer >= 1."),
    ("parallelism", 'tensor_parallel_degree = "2"', "Write the number without quotes: 2."),
    ("debug", "seed = 1e3", "Write 1000."),
    ("debug", "seed = -1", "must be an integer >= 0"),
    ("lr_scheduler", "warmup_steps = -1", "must be an integer >= 0."),
    ("lr_scheduler", "decay_ratio = 1.5", "must be a number >= 0 and <= 1."),
    ("metrics", 'enable_tensorboard = "True"', "Write true, without quotes."),
    ("metrics", "enable_tensorboard = 1", "must be true or false."),
    ("activation_checkpoint", "selective_ac_option = 2", 'Write it in quotes: "2".'),
    ("activation_checkpoint", 'selective_ac_option = "0"', "must be 'op', or a whole number >= 1 in quotes"),
    ("checkpoint", 'exclude_from_loading = "optimizer"', 'Did you mean "optimizer"?'),
    ("model", 'converters = "a"', "must be a list of strings. Write a list:"),
    # C4: degrees
    ("parallelism", "data_parallel_shard_degree = -2", "must be an integer >= 1, or -1."),
    ("parallelism", "data_parallel_shard_degree = 0", "must be an integer >= 1, or -1."),
    ("parallelism", "tensor_parallel_degree = 0", "must be an integer >= 1"),
    ("parallelism", "data_parallel_replicate_degree = -1", "only parallelism.data_parallel_shard_degree may be -1"),
    ("parallelism", "pipeline_parallel_degree = -1", "only parallelism.data_parallel_shard_degree may be -1"),
    # C6: schedules, spelled exactly
    ("parallelism", 'pipeline_parallel_schedule = "Interleved1F1B"', 'Did you mean "Interleaved1F1B"?'),
    ("parallelism", 'pipeline_parallel_schedule = "1f1b"', 'Did you mean "1F1B"?'),
    ("parallelism", 'pipeline_parallel_schedule = "gpipe"', 'Did you mean "GPipe"?'),
    ("parallelism", 'pipeline_parallel_schedule = "Interleaved_1F1B"', 'Did you mean "Interleaved1F1B"?'),
    ("parallelism", 'pipeline_parallel_schedule = " 1F1B"', 'Did you mean "1F1B"?'),
    ("parallelism", 'pipeline_parallel_schedule = ""', "must be one of '1F1B', 'GPipe'"),
    ("parallelism", 'pipeline_parallel_schedule = "PipelineScheduleMulti"', "must be one of '1F1B', 'GPipe'"),
    # C11, C39 and other ranges
    ("training", "steps = 0", "must be an integer >= 1."),
    ("training", "max_norm = 0", "must be a number > 0; inf means no clipping."),
    ("training", "max_norm = -1.0", "must be a number > 0; inf means no clipping."),
    ("training", "max_norm = nan", "must be a number > 0; inf means no clipping."),
    ("training", "global_batch_size = 0", "must be an integer >= 1, or -1."),
    ("parallelism", "fsdp_reshard_after_forward = 0", "or an integer >= 1 (the size of the group to reshard to)."),
    ("parallelism", 'fsdp_reshard_after_forward = "Always"', 'Did you mean "always"?'),
    ("parallelism", 'context_parallel_load_balancer = "ptrr"', "must be 'headtail' or 'none'."),
    # features that are not here
    ("model", 'converters = ["quantize.linear.float8"]', 'use training.mixed_precision_param = "bfloat16"'),
    ("parallelism", "expert_parallel_degree = 2", "keep 1"),
    ("fault_tolerance", "enable = true", "MAX_RESTARTS"),
    ("checkpoint", "initial_load_in_hf = true", "only checkpoints of this trainer"),
    ("comm", 'mode = "local_tensor"', "TITAN_DEVICE=cpu"),
    ("job", 'config_file = "other.toml"', "as the argument of the command"),
    # old names
    ("training", "batch_size = 8", "this key is now training.local_batch_size."),
    ("training", "compile = true", "this key is now compile.enable."),
    ("experimental", "pipeline_parallel_degree = 2", "this key is now parallelism.pipeline_parallel_degree."),
    ("experimental", "pipeline_parallel_microbatches = 2", "pipeline_parallel_microbatch_size"),
    ("checkpoint", 'interval_type = "steps"', "gone: checkpoint.interval is in steps."),
    ("float8", "enable_float8_linear = true", "model.converters"),
    ("metrics", "rank_0_only = true", "metrics.save_for_all_ranks"),
]


@pytest.mark.parametrize(("section", "line", "said"), BAD_LINES)
def test_a_bad_line_is_refused_with_its_place_and_remedy(tmp_path: Path, section: str, line: str, said: str) -> None:
    (message,) = problems(tmp_path, f"[{section}]\n{line}\n")
    assert said in message
    assert "run.toml:" in message
    assert section in message


def test_all_problems_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    text = '[training]\nsteps = 0\nstep = 1\n\n[optimizer]\nlr = "1"\n[debug]\nmoe_force_load_balance = true\n[zzz]\n'
    found = problems(tmp_path, text, "--training.seq_len=0", "--nonsense")
    places = ["command line: --nonsense", "run.toml:3:", "run.toml:9:", "run.toml:6:", "run.toml:2:", "run.toml:8:"]
    assert len(found) == 7
    for place in [*places, "command line: training.seq_len = 0"]:
        assert sum(place in line for line in found) == 1, (place, found)


def test_an_integer_may_stand_for_a_float_and_words_for_none_and_infinity(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        '[optimizer]\nlr = 1\n[training]\nmax_norm = inf\n[parallelism]\ncontext_parallel_load_balancer = "none"\n'
        'fsdp_reshard_after_forward = 2\n[model]\ntokenizer_path = "here"\n[checkpoint]\nkeep_latest_k = 1\n'
    )
    config = load(path)
    assert config.optimizer.lr == 1.0
    assert isinstance(config.optimizer.lr, float)
    assert math.isinf(config.training.max_norm)
    assert config.parallelism.context_parallel_load_balancer is None
    assert config.parallelism.fsdp_reshard_after_forward == 2
    assert (config.model.hf_assets_path, config.model.tokenizer_path) == ("here", None)
    assert load_text(tmp_path, dump(config)) == config


def load_text(folder: Path, text: str) -> Config:
    path = folder / "again.toml"
    path.write_text(text)
    return load(path)


def test_two_names_for_the_tokenizer_that_disagree_are_refused(tmp_path: Path) -> None:
    (message,) = problems(tmp_path, '[model]\nhf_assets_path = "a"\ntokenizer_path = "b"\n')
    assert "delete this one" in message


def test_a_file_extends_others_and_the_later_wins(tmp_path: Path) -> None:
    (tmp_path / "bases").mkdir()
    (tmp_path / "bases" / "a.toml").write_text(
        "[training]\nsteps = 1\nseq_len = 64\n[model.args]\ndim = 8\nn_heads = 2\n"
    )
    (tmp_path / "bases" / "b.toml").write_text('extends = "a.toml"\n[training]\nsteps = 2\n[model.args]\ndim = 16\n')
    (tmp_path / "c.toml").write_text("[optimizer]\nlr = 0.5\n")
    path = tmp_path / "run.toml"
    path.write_text('extends = ["bases/b.toml", "c.toml"]\n[job]\ndescription = "x"\n')
    config = load(path, ["--training.seq_len=128"])
    origins = config.origins
    assert (config.training.steps, config.training.seq_len, config.optimizer.lr) == (2, 128, 0.5)
    assert config.model.args == {"dim": 16, "n_heads": 2}
    assert origins["training.steps"].endswith("b.toml:3")
    assert origins["training.seq_len"] == "command line"
    assert origins["model.args.n_heads"].endswith("a.toml:6")
    written = dump(config)
    assert f"steps = 2  # {tmp_path}/bases/b.toml:3" in written
    assert "seq_len = 128  # command line" in written
    assert "max_norm = 1.0  # default" in written
    assert load_text(tmp_path, written) == config


def test_a_file_cannot_extend_itself(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "run.toml"\n')
    (message,) = problems(tmp_path, 'extends = "a.toml"\n')
    assert "a file cannot extend itself" in message
    (message,) = problems(tmp_path, "extends = 3\n")
    assert "must be a file name or a list of file names" in message


def test_files_that_cannot_be_read_are_one_clear_problem(tmp_path: Path) -> None:
    (tmp_path / "debug.toml").write_text("")
    cases = [(tmp_path / "debg.toml", f"Did you mean {tmp_path / 'debug.toml'}?"), (tmp_path, "is a folder")]
    latin = tmp_path / "latin.toml"
    latin.write_bytes("[job]\ndescription = 'é'\n".encode("latin-1"))
    cases.append((latin, "not UTF-8 text (byte 21)"))
    broken = tmp_path / "broken.toml"
    broken.write_text("[training]\nsteps = \n")
    cases.append((broken, "broken.toml:2: not valid TOML"))
    cases.append((tmp_path / "debug.toml" / "x", "cannot be read: Not a directory"))
    for path, said in cases:
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert said in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "nowhere" / "x.toml")


def test_a_section_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (message,) = problems(tmp_path, "training = 3\n")
    assert "training = 3: must be a table." in message


def test_the_dump_of_a_configuration_loads_to_the_same(tmp_path: Path) -> None:
    assert load_text(tmp_path, dump(Config())) == Config()
    for path in sorted(CONFIGS.rglob("*.toml")):
        config = load(path)
        assert load_text(tmp_path, dump(config)) == config, path
    odd = load_text(
        tmp_path,
        '[job]\ndescription = "quote \\" back \\\\ line\\n tab\\t é 😀 \\u007f"\n[optimizer]\nlr = 1e-30\neps = 1e-7\n'
        '[model.args]\ndim = 8\nratio = 2.0\n"odd key" = [1, 2.5]\nrope_scaling = { factor = 8.0 }\n'
        '[parallelism]\nmodule_fqns_per_model_part = [["tok_embeddings", "layers.0"], ["norm"]]\n',
    )
    assert load_text(tmp_path, dump(odd)) == odd
    assert load_text(tmp_path, dump(odd)).job.description == odd.job.description
    assert isinstance(load_text(tmp_path, dump(odd)).model.args["ratio"], float)


def test_unreadable_file_says_why(tmp_path: Path) -> None:
    path = tmp_path / "fifo.toml"
    path.write_text("")
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything; then the file is simply empty
        assert load(path) == Config()
        return
    with pytest.raises(ConfigError, match="Permission denied"):
        load(path)


@pytest.mark.quick
def test_a_file_that_shares_only_its_ending_is_not_suggested(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "debug.toml").write_text("")
    with pytest.raises(ConfigError) as error:
        load(str(tmp_path / "nope.toml"), [])
    assert "Did you mean" not in str(error.value)
    with pytest.raises(ConfigError, match=r"Did you mean .*debug\.toml\?"):
        load(str(tmp_path / "debgu.toml"), [])
