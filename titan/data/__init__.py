"""Text to rows of token ids: sources, tokenizer, cache, packing, order; and the loader that hands them to a rank.

All but `titan.data.loader` works without torch, so that a launcher and a check can use it at once. Sources are read in
one order and tokenized once (cache.py), rows are cut from the stream (packing.py) and shuffled by a formula (order.py).
"""

from titan.data.errors import DataError
from titan.data.rows import Rows, open_rows, prepare

__all__ = ["DataError", "Rows", "open_rows", "prepare"]
