"""The one error of this package: data or a tokenizer that cannot be used, said so that the person can act.

It is a ValueError, so that the configuration check reports it among its other findings. Each message names the key or
the file (and line), what was found, and what to do.
"""

from __future__ import annotations


class DataError(ValueError):
    """Data, or a tokenizer, that cannot be used."""

    exit_code = 2  # refused: the message is for the user, and the same start would fail again
