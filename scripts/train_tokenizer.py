#!/usr/bin/env python3
"""Trains a byte-level BPE tokenizer and writes it as a Hugging Face folder: the one that titan ships, or one of your
own.

    python scripts/train_tokenizer.py                       # the shipped one: python_stdlib, 2,048 tokens
    python scripts/train_tokenizer.py --dataset json --dataset-path 'data/*.jsonl' --vocab-size 32000 --out my_tokenizer

Deterministic: the same text gives the same file, byte for byte. The shipped one was trained on the standard library of
Python 3.11.7; any byte string can be encoded, so that it serves other text too, if less tightly. The first ids are
<|begin_of_text|> and <|end_of_text|>; there is no padding token, as rows are full.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from titan.config.schema_training import Training
from titan.data.documents import Tally
from titan.data.sources import open_source
from titan.data.tokenizer import SHIPPED

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"


def train(training: Training, vocab_size: int, out: Path) -> tuple[int, Tally]:
    """Writes tokenizer.json and tokenizer_config.json into `out`.

    Returns how many tokens there are, fewer than `vocab_size` where the text has no more to merge, and what was read.
    Raises DataError where the source has no text.
    """
    source, tally = open_source(training), Tally()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(source.documents(tally), trainer)
    tally.refuse_if_empty(source.name)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    names = {"bos_token": BOS, "eos_token": EOS, "tokenizer_class": "PreTrainedTokenizerFast"}
    (out / "tokenizer_config.json").write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")
    return tokenizer.get_vocab_size(), tally


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train a byte-level BPE tokenizer.")
    parser.add_argument("--dataset", default="python_stdlib", help="as training.dataset")
    parser.add_argument("--dataset-path", default=None, help="as training.dataset_path")
    parser.add_argument("--dataset-split", default="train", help="as training.dataset_split")
    parser.add_argument("--dataset-config", default=None, help="as training.dataset_config")
    parser.add_argument("--text-column", default="text", help="as training.text_column")
    parser.add_argument("--vocab-size", type=int, default=2048, help="at least 258: 256 bytes and two special tokens")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder to write (default: the shipped tokenizer)")
    args = parser.parse_args()
    if args.vocab_size < 258:
        parser.error(f"--vocab-size {args.vocab_size}: at least 258, for 256 bytes and two special tokens")
    training = Training(
        dataset=args.dataset,
        dataset_path=args.dataset_path,
        dataset_split=args.dataset_split,
        dataset_config=args.dataset_config,
        text_column=args.text_column,
    )
    try:
        size, tally = train(training, args.vocab_size, args.out)
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    fewer = f" of {args.vocab_size}: the text has no more to merge" if size < args.vocab_size else ""
    print(f"{args.out}: {size} tokens{fewer}, from {tally.documents} documents")
    if tally.skipped:
        print(f"skipped: {tally}")


if __name__ == "__main__":
    main()
