"""`titan check` and `titan config` as a user runs them: exit codes, what is printed, half a second, no torch."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from titan.commands import check
from titan.commands import config as config_command
from titan.config import load
from titan.config.reference import json_schema, page

DEBUG = str(Path(__file__).parents[2] / "configs" / "llama3" / "debug.toml")
WITHOUT_TORCH = (
    "import sys; from titan.cli import main; code = main(sys.argv[1:]);"
    "assert 'torch' not in sys.modules, 'torch was imported'; sys.exit(code)"
)


def whole(*words: str, cwd: Path | None = None) -> tuple[int, str, str, float]:
    """A command as a process of its own: exit code, output, error output, processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, cwd=cwd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.returncode, done.stdout, done.stderr, seconds


BAD = {
    "[trainin]\nsteps = 3\n": "trainin: unknown section. Did you mean training?",
    '[optimizer]\nlr = "1e-4"\n': "Write the number without quotes: 1e-4.",
    "[parallelism]\ntensor_parallel_degree = 3\n": "does not divide by tensor_parallel_degree = 3",
    "steps = \n": "not valid TOML",
}


# Wall-clock time on a busy machine says nothing; the processor time of the whole process does.
@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_refused_by_the_whole_command_in_under_two_seconds_without_torch(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "bad.toml").write_text(text)
    code, out, error, seconds = whole("check", "bad.toml", cwd=tmp_path)
    assert (code, out) == (2, "")
    assert BAD[text] in error
    assert "bad.toml:" in error
    assert "Traceback" not in error
    assert seconds < 2.0, seconds


def test_a_good_file_is_checked_for_a_world_that_is_not_there_in_under_two_seconds_without_torch() -> None:
    override = "--parallelism.tensor_parallel_degree=2"
    code, out, error, seconds = whole("check", DEBUG, "--world-size", "16", override)
    assert (code, error) == (0, "")
    assert "dp_shard 8 x tp 2 (16 processes)" in out
    assert "6,163,712 parameters, 6 layers, vocabulary 2048" in out
    assert seconds < 2.0, seconds


def test_the_other_commands_need_no_torch_either(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text("[training]\nbatch_size = 2\n")
    code, out, error, _seconds = whole("config", "migrate", "old.toml", cwd=tmp_path)
    assert (code, out) == (0, "[training]\nlocal_batch_size = 2\n")
    assert error == "changed: training.batch_size -> training.local_batch_size\n"


@pytest.mark.quick
def test_all_problems_are_counted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[training]\nsteps = 0\nseq_len = 31\n[parallelism]\ntensor_parallel_degree = 0\n")
    assert check.main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"2 problems:\n{path}:2: training.steps = 0")
    assert check.main([DEBUG, "--world-size", "3"]) == 2
    assert "3 data-parallel ranks" in capsys.readouterr().err


@pytest.mark.quick
def test_the_file_may_be_named_as_torchtitan_does(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([f"--job.config_file={DEBUG}"], ["--training.steps=70", "--job.config_file", DEBUG]):
        assert check.main(words) == 0
        assert "llama3 debugmodel" in capsys.readouterr().out


@pytest.mark.quick
def test_show_prints_every_value_with_its_origin_and_loads_to_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert config_command.main(["show", DEBUG, "--training.steps=7"]) == 0
    out = capsys.readouterr().out
    assert "steps = 7  # command line" in out
    assert f"seq_len = 128  # {DEBUG}:" in out
    assert "weight_decay = 0.1  # default" in out
    (tmp_path / "again.toml").write_text(out)
    assert load(tmp_path / "again.toml") == load(DEBUG, ["--training.steps=7"])


@pytest.mark.quick
def test_diff_tells_what_changes_the_numbers_from_what_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(f'extends = "{DEBUG}"\n[optimizer]\nlr = 2e-3\n[metrics]\nlog_freq = 5\n[model.args]\ndim = 128\n')
    assert config_command.main(["diff", DEBUG, str(other)]) == 1
    assert capsys.readouterr().out == (
        "changes the numbers of the run:\n  optimizer.lr 0.001 -> 0.002\n  model.args.dim none -> 128\n"
        "does not:\n  metrics.log_freq 1 -> 5\n"
    )
    assert config_command.main(["diff", DEBUG, DEBUG]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.quick
def test_schema_and_docs_go_to_standard_output_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert config_command.main(["docs"]) == 0
    assert capsys.readouterr().out == page()
    assert config_command.main(["schema", "-o", str(tmp_path / "schema.json")]) == 0
    assert json.loads((tmp_path / "schema.json").read_text()) == json_schema()
    assert config_command.main(["schema", "-o", str(tmp_path / "no" / "schema.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.quick
def test_migrate_writes_the_file_and_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text('[training]\nseed = 3 # mine\n[checkpoint]\ninterval_type = "seconds"\n')
    assert config_command.main(["migrate", str(old), "-o", str(new)]) == 0
    said = capsys.readouterr().err
    assert "changed: training.seed -> debug.seed" in said
    assert 'left as it is, no counterpart: checkpoint.interval_type = "seconds"' in said
    assert "[debug]\nseed = 3 # mine\n" in new.read_text()
    old.write_text("x = \n")
    assert config_command.main(["migrate", str(old)]) == 2
    assert "not valid TOML" in capsys.readouterr().err
    assert config_command.main(["migrate", str(tmp_path / "none.toml")]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.quick
@pytest.mark.parametrize(("words", "code"), [([], 2), (["shw"], 2), (["--help"], 0)])
def test_an_unknown_command_is_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    assert config_command.main(words) == code
    found = capsys.readouterr()
    assert "migrate OLD.toml" in found.out + found.err


@pytest.mark.quick
def test_check_looks_for_the_data_and_says_what_is_missing_beside_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check.main([DEBUG, "--training.dataset=json"]) == 2
    assert "set training.dataset_path to a file" in capsys.readouterr().err
    wrong = "--parallelism.tensor_parallel_degree=3"
    assert check.main([DEBUG, wrong, "--training.dataset=text", "--training.dataset_path=no.txt"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("3 problems:")
    assert "tensor_parallel_degree = 3" in error
    assert 'training.dataset_path = "no.txt": no such file' in error
    (tmp_path / "a.txt").write_text("one document")
    assert check.main([DEBUG, "--training.dataset=text", "--training.dataset_path=a.txt"]) == 0
    assert 'data     text files of "a.txt"' in capsys.readouterr().out
