"""Any tokenizer folder, its names of BOS and EOS wherever they stand, and exactly one of each marker asked for
(C19)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tests.data.conftest import MakeTraining, WriteRows
from titan.config.schema_model import Model
from titan.data import DataError, cache
from titan.data.tokenizer import SHIPPED, load, markers, vocab_size

pytestmark = pytest.mark.quick

BYTES = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def folder_of(path: Path, *, added: tuple[str, ...] = ("<s>", "</s>"), **files: Any) -> Path:
    """Writes a tokenizer of 256 bytes and the added special tokens, which adds `<s>` in its own post-processor, cuts at
    4 tokens and pads; and the JSON files given as `name=content`."""
    backend = Tokenizer(models.BPE(vocab=BYTES, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in added])
    if added:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{added[0]} $A", special_tokens=[(added[0], backend.token_to_id(added[0]))]
        )
        backend.enable_padding(pad_id=256, pad_token=added[0], length=16)
    backend.enable_truncation(4)
    path.mkdir()
    backend.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def loaded(path: Path) -> Any:
    return load(Model(hf_assets_path=str(path)))


STRINGS = {"bos_token": "<s>", "eos_token": "</s>"}
OBJECTS = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": {"content": "</s>", "lstrip": False}}


@pytest.mark.parametrize(
    ("files", "bos", "eos"),
    [
        ({"tokenizer_config": STRINGS}, 256, 257),
        ({"tokenizer_config": OBJECTS}, 256, 257),
        ({"special_tokens_map": STRINGS}, 256, 257),
        ({"tokenizer_config": {"tokenizer_class": "X"}, "special_tokens_map": OBJECTS}, 256, 257),
        ({"config": {"bos_token_id": 256, "eos_token_id": [257, 3]}}, 256, 257),
        # null in the first file decides, whatever the model's config.json says
        ({"tokenizer_config": {"bos_token": None, "eos_token": "</s>"}, "config": {"bos_token_id": 256}}, None, 257),
        ({"tokenizer_config": {"bos_token": "</s>", "eos_token": "</s>"}}, 257, 257),
        ({}, None, None),
    ],
)
def test_bos_and_eos_are_found_where_hugging_face_keeps_them(
    tmp_path: Path, files: dict[str, Any], bos: int | None, eos: int | None
) -> None:
    tokenizer = loaded(folder_of(tmp_path / "t", **files))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (bos, eos)


def test_the_tokenizers_own_bos_truncation_and_padding_are_off(tmp_path: Path) -> None:
    tokenizer = loaded(folder_of(tmp_path / "t", tokenizer_config=STRINGS))
    ids = tokenizer.encode("hello world")
    assert len(ids) == len("hello world")
    assert 256 not in ids


def test_text_that_spells_a_special_token_is_text(tmp_path: Path) -> None:
    tokenizer = loaded(folder_of(tmp_path / "t", tokenizer_config=STRINGS))
    ids = tokenizer.encode("a</s>b")
    assert 257 not in ids
    assert tokenizer.decode(ids) == "a</s>b"


@pytest.mark.parametrize("same", [False, True], ids=["bos != eos", "bos == eos"])
@pytest.mark.parametrize(("add_bos", "add_eos"), [(True, True), (True, False), (False, True), (False, False)])
def test_each_document_has_exactly_the_markers_asked_for(
    tmp_path: Path, training: MakeTraining, jsonl: WriteRows, same: bool, add_bos: bool, add_eos: bool
) -> None:
    names = {"bos_token": "</s>", "eos_token": "</s>"} if same else STRINGS
    model = Model(hf_assets_path=str(folder_of(tmp_path / "t", tokenizer_config=names)))
    section = training(dataset="json", dataset_path=str(jsonl(["ab", "c"])), add_bos=add_bos, add_eos=add_eos)
    corpus = cache.open_corpus(cache.prepare(section, model))
    before = [257 if same else 256] if add_bos else []
    after = [257] if add_eos else []
    a, b, c = (BYTES[letter] for letter in "abc")
    assert corpus.tokens.tolist() == [*before, a, b, *after, *before, c, *after]
    assert corpus.offsets.tolist() == [0, 2 + len(before + after), 3 + 2 * len(before + after)]


def test_a_marker_that_the_tokenizer_lacks_is_refused_with_the_remedy(tmp_path: Path, training: MakeTraining) -> None:
    tokenizer = loaded(folder_of(tmp_path / "t"))
    with pytest.raises(DataError) as caught:
        markers(training(), tokenizer)
    message = str(caught.value)
    assert "training.add_bos = true: " in message
    assert "Set training.add_eos = false" in message
    assert markers(training(add_bos=False, add_eos=False), tokenizer) == ([], [])


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"tokenizer_config": {"bos_token": "<none>"}}, "bos_token = '<none>' is no token"),
        ({"tokenizer_config": {"bos_token": 3}}, "bos_token = 3 is no token"),
        ({"config": {"eos_token_id": 999}}, "eos_token_id = 999 is no token"),
        ({"config": [1]}, "holds a list where a JSON object belongs"),
    ],
)
def test_a_marker_that_is_no_token_is_refused_by_file(tmp_path: Path, files: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DataError, match="json") as caught:
        loaded(folder_of(tmp_path / "t", **files))
    assert complaint in str(caught.value)


def test_the_size_is_the_largest_id_plus_one_with_added_tokens(tmp_path: Path) -> None:
    assert vocab_size(Model(hf_assets_path=str(folder_of(tmp_path / "t", added=("<s>", "</s>", "<x>"))))) == 259


def test_the_size_counts_holes_in_the_ids(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "t")
    content = json.loads((path / "tokenizer.json").read_text())
    content["model"]["vocab"]["zz"] = 400
    (path / "tokenizer.json").write_text(json.dumps(content))
    assert vocab_size(Model(hf_assets_path=str(path))) == 401


def test_the_fingerprint_is_of_what_encodes_not_of_the_file(tmp_path: Path) -> None:
    one = folder_of(tmp_path / "one", tokenizer_config=STRINGS)
    other = folder_of(tmp_path / "other", special_tokens_map=OBJECTS)
    content = json.loads((other / "tokenizer.json").read_text())
    content["truncation"] = content["padding"] = content["post_processor"] = None
    (other / "tokenizer.json").write_text(json.dumps(content, indent=4))
    assert loaded(one).fingerprint == loaded(other).fingerprint
    more = folder_of(tmp_path / "more", added=("<s>", "</s>", "<x>"), tokenizer_config=STRINGS)
    swapped = folder_of(tmp_path / "swapped", tokenizer_config={"bos_token": "</s>", "eos_token": "<s>"})
    assert len({loaded(path).fingerprint for path in (one, more, swapped)}) == 3


@pytest.mark.parametrize(
    ("prepare", "complaint"),
    [
        (lambda path: None, "no such folder"),
        (lambda path: path.write_text("x"), "a file; give the folder"),
        (lambda path: path.mkdir(), "has no tokenizer.json (it holds: nothing)"),
        (lambda path: (path.mkdir(), (path / "tokenizer.model").touch()), "it holds: tokenizer.model"),
        (lambda path: (path.mkdir(), (path / "tokenizer.json").write_text("{")), "not a tokenizer that can be loaded"),
        (lambda path: (path.mkdir(), (path / "tokenizer.json").write_bytes(b"\xff")), "cannot be read"),
    ],
)
def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path, prepare: Any, complaint: str) -> None:
    path = tmp_path / "assets"
    prepare(path)
    with pytest.raises(DataError) as caught:
        loaded(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_shipped_tokenizer_round_trips_any_bytes_that_are_text() -> None:
    tokenizer = load(Model())
    assert tokenizer.folder == SHIPPED
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (2048, 0, 1)
    text = "def f(x):\n\treturn x  # \x00 \r\n Grüße 漢字 \U0001f600\ufeff"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids) < 2048
    assert len(tokenizer.encode("def __init__(self):")) < 8


def test_the_training_script_is_deterministic_and_takes_other_text(tmp_path: Path, jsonl: WriteRows) -> None:
    data = jsonl(["low lower lowest", "new newer newest"] * 20)
    script = Path(__file__).parents[2] / "scripts" / "train_tokenizer.py"
    for name in ("one", "two"):
        arguments = ["--dataset", "json", "--dataset-path", str(data), "--vocab-size", "270", "--out", tmp_path / name]
        subprocess.run([sys.executable, str(script), *map(str, arguments)], check=True, capture_output=True)
    files = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]
    tokenizer = loaded(tmp_path / "one")
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (270, 0, 1)
    assert tokenizer.decode(tokenizer.encode("lowest")) == "lowest"
    arguments = ["--dataset", "json", "--dataset-path", str(data), "--vocab-size", "32000", "--out", tmp_path / "fewer"]
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)], check=True, capture_output=True, text=True
    )
    assert f": {loaded(tmp_path / 'fewer').vocab_size} tokens of 32000: the text has no more to merge" in done.stdout


def test_neither_the_size_nor_preparing_imports_torch(training: MakeTraining, jsonl: WriteRows) -> None:
    section = training(dataset="json", dataset_path=str(jsonl(["some text"])))
    code = f"""
import sys
from titan.config.schema_model import Model
from titan.config.schema_training import Training
from titan.data import open_rows, prepare
from titan.data.tokenizer import vocab_size
training = Training(**{section.model_dump(exclude={"dataloader"})!r})
vocab_size(Model()), prepare(training, Model()), open_rows(training, Model(), 0).fetch(0, 1)
found = {{"torch", "datasets", "pyarrow"}} & set(sys.modules)
sys.exit(f"imported {{found}}" if found else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_wide_ids_are_kept_whole(tmp_path: Path, training: MakeTraining, jsonl: WriteRows) -> None:
    path = folder_of(tmp_path / "t", tokenizer_config=STRINGS)
    content = json.loads((path / "tokenizer.json").read_text())
    content["model"]["vocab"]["Z"] = 70_000
    (path / "tokenizer.json").write_text(json.dumps(content))
    section = training(dataset="json", dataset_path=str(jsonl(["aZ"])), add_bos=False, add_eos=False)
    corpus = cache.open_corpus(cache.prepare(section, Model(hf_assets_path=str(path))))
    assert corpus.tokens.dtype == np.uint32
    assert corpus.tokens.tolist() == [BYTES["a"], 70_000]
