"""Bad files by the hundred: every key of the schema with every kind of wrong value, and files that many people write.

Each is refused with its line, its key, the value and the rule, as one problem. The same files go through `python -O`,
where an assert would let them pass, and a few through whole commands.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from titan.config import ConfigError, load, resolve, world_size_wanted
from titan.config.reference import fields
from titan.config.wording import leaves, takes_none

pytestmark = pytest.mark.quick


def bad_values(field: FieldInfo) -> list[str]:
    """Values as TOML that the field's type cannot take: other types, quoted numbers, other cases, beyond its bounds."""
    kinds = leaves(field.annotation)
    plain = {get_origin(kind) or kind for kind in kinds}
    found = ["2024-01-01", "{ a = 1 }"] if dict not in plain else ["3", '"x"']
    if bool in plain:
        found += ['"true"', "1", "[true]", '"no"']
    if plain <= {int, float, Literal} and plain & {int, float}:
        found += ["true", "[1]", "nan", '"12"', "-7"]
        found += ["1.5", "3.0", "1e3", "inf"] if float not in plain else []
    if plain == {str}:
        found += ["3", "true", "1.5", "[]"]
        if field.metadata and not takes_none(field):
            found.append('""')
    for kind in kinds:
        if get_origin(kind) is Literal and isinstance(get_args(kind)[0], str):
            word = get_args(kind)[0]
            found += [f'"{word.swapcase()}"', f'" {word}"', f'"{word}s"', "true"] if word.swapcase() != word else []
    if list in plain and str not in plain:
        found += ['"a"', "[1]", "[[[]]]"]
    return found


FREE = {"training.max_norm": ["inf"], "job.time_limit": ['"12"'], "quantize.linear.mx.recipe_name": ['""']}
"""What a field takes though its type is like that of others that do not."""
EACH = [(key, value) for key, field in fields() for value in bad_values(field) if value not in FREE.get(key, [])]


def said(folder: Path, text: str, *arguments: str, world: int | None = None) -> list[str]:
    """Lines of the refusal, by load or by resolve; none where the file can run."""
    path = folder / "bad.toml"
    path.write_text(text)
    try:
        config = load(path, arguments)
        resolve(config, world or world_size_wanted(config, "cpu"), "cpu")
    except ConfigError as error:
        return str(error).splitlines()
    return []


def test_every_key_refuses_every_kind_of_wrong_value_with_line_key_value_and_rule(tmp_path: Path) -> None:
    assert len(EACH) > 600
    for key, value in EACH:
        section, _, name = key.rpartition(".")
        found = said(tmp_path, f"# a comment\n[{section}]\n{name} = {value}\n")
        assert len(found) == 1, (key, value, found)
        (line,) = found
        assert line.startswith(f"{tmp_path}/bad.toml:3: {key}"), line
        assert "must be " in line, line
        assert not re.search(r"pydantic|type=|Traceback|<class", line), line


def test_every_key_one_letter_off_is_answered_with_the_right_name(tmp_path: Path) -> None:
    wrong = []
    for number, (key, _field) in enumerate(fields()):
        section, _, name = key.rpartition(".")
        shorter = name[:-1] if len(name) > 3 else f"{name}s"
        misspelt = (shorter, name.replace("_", "-"), name.upper(), f"{name}_")[number % 4]
        if misspelt == name:
            misspelt = shorter
        found = said(tmp_path, f"[{section}]\n{misspelt} = 1\n")
        if len(found) != 1 or "bad.toml:2: " not in found[0] or f"Did you mean {key}?" not in found[0]:
            wrong.append((key, misspelt, found))
    # A shorter name can be another section's own key, of which we then speak.
    assert len(wrong) <= 3, wrong
    assert all("Did you mean " in found[0] for _key, _misspelt, found in wrong)


SHAPE = "[model.args]\ndim = 64\nn_layers = 4\nn_heads = 4\nn_kv_heads = 2\n[training]\nseq_len = 32\n"
PIPED = "[parallelism]\npipeline_parallel_degree = 2\n"
LOCAL = "global_batch_size = 8\nlocal_batch_size = -1\n"

# (lines after a small valid file, world, what the one message contains): across fields, and against the model
ACROSS: list[tuple[str, int, list[str]]] = [
    ("[parallelism]\ntensor_parallel_degree = 2\npipeline_parallel_degree = 2\n", 6, ["= 4", "6 processes"]),
    ("[parallelism]\ntensor_parallel_degree = 2\n", 3, ["a multiple of 2"]),
    ("[parallelism]\ntensor_parallel_degree = 2\n", 1, ["= 2", "1 process"]),
    ("[parallelism]\ndata_parallel_shard_degree = 2\ndata_parallel_replicate_degree = 4\n", 4, ["= 8"]),
    ("[parallelism]\ndata_parallel_shard_degree = 3\n", 3, ["global_batch_size = 8", "3 data-parallel ranks"]),
    ("[parallelism]\ndata_parallel_replicate_degree = 16\n", 16, ["16 data-parallel ranks"]),
    (f"{PIPED}pipeline_parallel_microbatch_size = 3\n", 2, ["microbatch_size = 3"]),
    (f"{PIPED}pipeline_parallel_microbatch_size = 16\n", 2, ["8 rows a rank"]),
    (f"{PIPED}pipeline_parallel_microbatch_size = 8\n", 2, ["at least 2 microbatches"]),
    ("[parallelism]\npipeline_parallel_degree = 8\n", 8, ["4 layers do not fill"]),
    ('[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "ZBVZeroBubble"\n'
     'fsdp_reshard_after_forward = "always"\n', 2, ["fsdp_reshard_after_forward", "default or never"]),
    ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = 1\n", 2, ["layers_per_stage"]),
    ('[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule_csv = "none.csv"\n', 2, ["none.csv"]),
    ('[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = [["tok_embeddings", "layers.0"], '
     '["layers.1", "layers.2", "layers.3", "norm"]]\n', 2, ["no stage holds output"]),
    ('[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = [["tok_embeddings", "layers.0"], '
     '["layers.1", "layers.2", "layers.3"], ["norm", "output"]]\n', 2, ["3 stages", "2, one a rank"]),
    ("[parallelism]\ncontext_parallel_degree = 3\n", 3, ["seq_len = 32", "3 x 2 = 6"]),
    ("[parallelism]\ncontext_parallel_degree = 32\n", 32, ["32 x 2 = 64"]),
    ('[parallelism]\ncontext_parallel_degree = 8\ncontext_parallel_rotate_method = "ulysses"\n', 8, ["4 / 1 = 4"]),
    ("[parallelism]\nfsdp_reshard_after_forward = 3\n", 4, ["must divide the ranks that shard"]),
    ("[profiling]\nenable_profiling = true\nprofile_freq = 2\n", 1, ["profiler_warmup + profiler_active", "Write 4"]),
    ("[checkpoint]\ncreate_seed_checkpoint = true\n", 1, ["checkpoint.enable = true"]),
    ('[activation_checkpoint]\nmode = "memory_budget"\n', 1, ["compile.enable = true"]),
    ('[comm]\nmode = "fake_backend"\n[parallelism]\npipeline_parallel_degree = 2\n', 2, ["titan plan"]),
    ('[model]\nname = "gpt"\n', 1, ["no such model", "llama3"]),
    ('[model]\nflavor = "80B"\n', 1, ["no such flavor", 'Did you mean "8B"?']),
    ('[model]\nhf_assets_path = "/no/such/place"\n', 1, ["no such folder"]),
    ('[experimental]\ncustom_import = "not_a_module_of_ours"\n', 1, ["PYTHONPATH"]),
    ('[experimental]\ncustom_import = "a..b"\n', 1, ["cannot be imported"]),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "world", "parts"), ACROSS)
def test_rules_across_fields_name_numbers_and_lines(tmp_path: Path, lines: str, world: int, parts: list[str]) -> None:
    assert said(tmp_path, f"{SHAPE}{LOCAL}", world=1) == []
    (line,) = said(tmp_path, f"{SHAPE}{LOCAL}{lines}", world=world)
    assert all(part in line for part in parts), line
    assert "bad.toml:" in line, line


SEVEN = """\
[trainin]
steps = 3
[training]
steps = 10.5
seqlen = 32
[optimizer]
lr = "1e-4"
beta1 = 1.0
[parallelism]
pipeline_parallel_schedule = "1f1b"
[validation]
enable = true
"""
SEVEN_PLACES = {
    "bad.toml:1: trainin: unknown section. Did you mean training?",
    "bad.toml:4: training.steps = 10.5: must be an integer >= 1.",
    "bad.toml:5: training.seqlen: unknown key. Did you mean training.seq_len?",
    'bad.toml:7: optimizer.lr = "1e-4": must be a number > 0. Write the number without quotes: 1e-4.',
    "bad.toml:8: optimizer.beta1 = 1.0: must be a number >= 0 and < 1.",
    "bad.toml:10: parallelism.pipeline_parallel_schedule = \"1f1b\": must be one of '1F1B', ",
    "bad.toml:12: validation.enable = true: not supported yet",
}


def test_seven_mistakes_are_seven_messages_in_one_run(tmp_path: Path) -> None:
    found = said(tmp_path, SEVEN)
    assert len(found) == 7
    assert all(any(place in line for line in found) for place in SEVEN_PLACES), found


BEYOND = [  # what TOML or the system cannot hold, though Python can: (file, argument, what the message contains)
    (f"[training]\nsteps = {2**63}\n", "", "bad.toml:2: training.steps = 9223372036854775808: must fit into 64 bits"),
    (f"[model.args]\ndim = 0x{'f' * 9000}\n", "", "bad.toml:2: model.args.dim = 0xffff"),
    (f"[training]\nsteps = {'9' * 5000}\n", "", "bad.toml: not valid TOML: a number of thousands"),
    (f"a = {'[' * 3000}{']' * 3000}\n", "", "bad.toml: not valid TOML: lists or tables nested"),
    ('extends = "a\\u0000b"\n', "", "bad.toml:1: extends: must be a file name"),
    ('[job]\ndump_folder = "a\\u0000b"\n', "", "bad.toml:2: job.dump_folder = "),
    ("", f"--training.steps={'[' * 3000}", "command line: training.steps"),
    ("", f"--training.steps={'9' * 5000}", "command line: training.steps"),
    ("", f"--training.steps=0x{'f' * 9000}", "command line: training.steps = 0xffff"),
    ("", "--job.dump_folder=\udcff", "command line: job.dump_folder = "),
]


@pytest.mark.parametrize(("text", "argument", "part"), BEYOND)
def test_what_toml_or_the_system_cannot_hold_is_one_refusal(
    tmp_path: Path, text: str, argument: str, part: str
) -> None:
    (line,) = said(tmp_path, text, *[argument][: bool(argument)], world=1)
    assert part in line


WITHOUT_ASSERTS = """
import sys
assert False, "asserts are off"
from pathlib import Path
from tests.config.test_bad_files import ACROSS, EACH, LOCAL, SHAPE, said
folder = Path(sys.argv[1])
texts = [("[{}]\\n{} = {}\\n".format(*key.rpartition(".")[::2], value), None) for key, value in EACH[::7]]
texts += [(SHAPE + LOCAL + lines, world) for lines, world, _ in ACROSS]
passed = [text for text, world in texts if not said(folder, text, world=world)]
print(len(texts), passed)
"""


def test_no_refusal_is_an_assert(tmp_path: Path) -> None:
    command = [sys.executable, "-O", "-c", WITHOUT_ASSERTS, str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.stdout.split(maxsplit=1) == [str(len(EACH[::7]) + len(ACROSS)), "[]\n"], done.stderr


def kept(values: list[Any]) -> int:
    return len(values)


def test_there_are_more_than_two_hundred() -> None:
    assert kept(EACH) + kept(ACROSS) + len(SEVEN_PLACES) > 200
