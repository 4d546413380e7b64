"""Tokenizers: the one that this package ships, or any Hugging Face tokenizer folder (`model.hf_assets_path`).

Begin and end tokens are ours to add, never the tokenizer's: its post-processor is not run (`add_special_tokens=False`),
so that a BOS that it would add is not added twice, and an EOS with the same id as BOS is still added. Text that spells
a special token is encoded as text: a document cannot end itself. Truncation and padding that a file asks for are off.

The names of BOS and EOS are looked up where Hugging Face keeps them: tokenizer_config.json, special_tokens_map.json,
then the ids of config.json. The first file that has the key decides, also when it says null (Qwen's way of having no
BOS).

No torch. The shipped tokenizer is a byte-level BPE (Sennrich et al., 2016, arXiv:1508.07909; bytes as in GPT-2) of
2,048 tokens, made by scripts/train_tokenizer.py.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titan.data.errors import DataError

if TYPE_CHECKING:
    from titan.config.schema_model import Model
    from titan.config.schema_training import Training

SHIPPED = Path(__file__).parent / "assets"
# What cannot change the ids of a text as we encode it, and so stays out of the fingerprint.
_NO_EFFECT = ("version", "truncation", "padding", "post_processor")


class Tokenizer:
    """A loaded tokenizer.

    Attributes:
        folder: where it was read from.
        bos_id, eos_id: ids of the begin and end tokens; None where the tokenizer has none.
    """

    def __init__(self, folder: Path) -> None:
        """Raises DataError where the folder holds no tokenizer.json that can be read."""
        from tokenizers import Tokenizer as Backend  # here: half a second that `import titan.data` need not take

        # Documents go through one at a time; without this, any later fork of this process would print a warning.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.folder = folder
        text = _read_text(folder)
        try:
            self._backend = Backend.from_str(text)
        except Exception as error:  # the library raises a bare Exception
            raise DataError(f"{folder / 'tokenizer.json'}: not a tokenizer that can be loaded: {error}") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self._content: dict[str, Any] = {key: value for key, value in json.loads(text).items() if key not in _NO_EFFECT}
        self.bos_id = self._special("bos")
        self.eos_id = self._special("eos")

    @cached_property
    def vocab_size(self) -> int:
        """Largest id + 1, added tokens counted: the rows that an embedding needs."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def fingerprint(self) -> str:
        """Hash of what maps text to ids: two folders with the same one encode alike."""
        content = json.dumps([self._content, self.bos_id, self.eos_id], sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def encode(self, text: str) -> list[int]:
        """Ids of the text, no special token among them."""
        # encode_batch_fast computes no offsets, which is a quarter of the time of encode().
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the ids."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def _special(self, kind: str) -> int | None:
        key = f"{kind}_token"
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            values = _read_json(self.folder / name)
            if key not in values:
                continue
            content = values[key].get("content") if isinstance(values[key], dict) else values[key]
            if content is None:
                return None
            token_id = self._backend.token_to_id(content) if isinstance(content, str) else None
            if token_id is None:
                raise DataError(f"{self.folder / name}: {key} = {content!r} is no token of tokenizer.json beside it")
            return int(token_id)
        # Llama 3.1 lists several ends (of a text, of a turn); the first is that of a text.
        value = _read_json(self.folder / "config.json").get(f"{kind}_token_id")
        first = value[0] if isinstance(value, list) and value else value
        if first is None:
            return None
        if not isinstance(first, int) or self._backend.id_to_token(first) is None:
            raise DataError(
                f"{self.folder / 'config.json'}: {kind}_token_id = {value!r} is no token of tokenizer.json beside it"
            )
        return first


def load(model: Model) -> Tokenizer:
    """The tokenizer of `model.hf_assets_path`, or the shipped one. Raises DataError."""
    if model.hf_assets_path is None:
        return Tokenizer(SHIPPED)
    return Tokenizer(Path(model.hf_assets_path).expanduser())


def vocab_size(model: Model) -> int:
    """Largest id of the model's tokenizer + 1. Raises DataError."""
    return load(model).vocab_size


def markers(training: Training, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that go before and after each document. Raises DataError where one is asked for that the tokenizer lacks."""
    found: list[list[int]] = []
    missing: list[str] = []
    for kind, wanted, token_id in (
        ("bos", training.add_bos, tokenizer.bos_id),
        ("eos", training.add_eos, tokenizer.eos_id),
    ):
        if wanted and token_id is None:
            missing.append(
                f"training.add_{kind} = true: the tokenizer in {tokenizer.folder} has no {kind.upper()} token. "
                f"Set training.add_{kind} = false, or name {kind}_token in its tokenizer_config.json."
            )
        found.append([token_id] if wanted and token_id is not None else [])
    if missing:
        raise DataError("\n".join(missing))
    return found[0], found[1]


def _read_text(folder: Path) -> str:
    key = f'model.hf_assets_path = "{folder}"'
    if not folder.exists():
        raise DataError(f"{key}: no such folder. Give the folder of a Hugging Face tokenizer, or leave the key out.")
    if not folder.is_dir():
        raise DataError(f"{key}: a file; give the folder that holds tokenizer.json ({str(folder.parent)!r}?).")
    path = folder / "tokenizer.json"
    if not path.is_file():
        found = ", ".join(sorted(item.name for item in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"{key}: has no tokenizer.json (it holds: {found}). A SentencePiece or slow tokenizer is converted by "
            "transformers' AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in the file; empty where there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__} where a JSON object belongs")
    return content
