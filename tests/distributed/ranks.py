"""The processes of the tests are those of `titan parity`."""

from titan.parity.ranks import RankError, run_ranks

__all__ = ["RankError", "run_ranks"]
