"""Fits the free constants of the plan's cost model on published runs of the 8B model; prints every row's error.

    python scripts/fit_plan.py            the table of docs/plan.md, with the constants as they stand
    python scripts/fit_plan.py --fit      also fits them anew

Least squares on the logarithm of tokens/s over the rows marked `fit` in tests/plan/published.toml, by coordinate
descent on a grid that is refined: no library, the same result each time.
"""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
from math import log
from pathlib import Path
from typing import Any

from titan.config import Config, Resolved, resolve
from titan.plan.cost import StepTime, predict
from titan.plan.cost_terms import FITTED, Constants, Extras
from titan.plan.devices import DEVICES

PUBLISHED = Path(__file__).parents[1] / "tests" / "plan" / "published.toml"
BOUNDS = {"products": (0.3, 0.9), "narrow": (0.0, 800.0), "doubling": (0.0, 0.03)}


DIGITS = {"products": 3, "narrow": 0, "doubling": 4}


def rows() -> list[dict[str, Any]]:
    """The published rows."""
    with open(PUBLISHED, "rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["row"]
    return found


def run_of(row: dict[str, Any]) -> tuple[Resolved, Extras]:
    """The run behind a row."""
    ac = row["ac"]
    values = {
        "model": {"name": "llama3", "flavor": row["flavor"]},
        "training": {"seq_len": row.get("seq_len", 8192), "local_batch_size": row["local"]},
        "parallelism": {
            "tensor_parallel_degree": row.get("tp", 1),
            "pipeline_parallel_degree": row.get("pp", 1),
            "context_parallel_degree": row.get("cp", 1),
            "pipeline_parallel_schedule": row.get("schedule", "1F1B"),
            "pipeline_parallel_microbatch_size": row.get("microbatch", 1),
        },
        "activation_checkpoint": {"mode": "full"} if ac == "full" else {"mode": "selective", "selective_ac_option": ac},
        "compile": {"enable": row.get("compile", False)},
    }
    float8 = row.get("float8", False)
    extras = Extras(float8=float8, float8_gather=float8, async_tp=row.get("async_tp", False))
    return resolve(Config.model_validate(values), row["world"], "cuda"), extras


def predicted(row: dict[str, Any], constants: Constants = FITTED) -> StepTime:
    """The plan's word on a row."""
    resolved, extras = run_of(row)
    return predict(resolved, DEVICES["h100-96gb"], 8, extras=extras, constants=constants)


def error(row: dict[str, Any], constants: Constants = FITTED) -> float:
    """Predicted over published tokens/s, less 1."""
    return predicted(row, constants).tokens_per_second_per_device / float(row["tokens"]) - 1.0


def fit() -> Constants:
    """The constants with the least sum of squared logarithms over the rows to fit."""
    chosen = [row for row in rows() if row.get("fit")]
    best = dataclasses.replace(FITTED, **{name: (low + high) / 2 for name, (low, high) in BOUNDS.items()})

    def loss(constants: Constants) -> float:
        return sum(log(1.0 + error(row, constants)) ** 2 for row in chosen)

    steps = {name: (high - low) / 4 for name, (low, high) in BOUNDS.items()}
    least = loss(best)
    while steps["products"] > 5e-4:
        moved = False
        for name, (low, high) in BOUNDS.items():
            for sign in (-1, 1):
                value = min(high, max(low, getattr(best, name) + sign * steps[name]))
                tried = dataclasses.replace(best, **{name: value})
                if (found := loss(tried)) < least:
                    best, least, moved = tried, found, True
        if not moved:
            steps = {name: step / 2 for name, step in steps.items()}
    return Constants(links=FITTED.links, **{name: round(getattr(best, name), DIGITS[name]) for name in BOUNDS})


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost model against published figures.")
    parser.add_argument("--fit", action="store_true", help="fit the constants anew")
    constants = fit() if parser.parse_args().fit else FITTED
    print(constants)
    print("\n| run | fitted | published | predicted | error |\n|---|---|---|---|---|")
    for row in rows():
        found = predicted(row, constants).tokens_per_second_per_device
        fitted = "yes" if row.get("fit") else ""
        print(f"| {row['name']} | {fitted} | {row['tokens']:,} | {found:,.0f} | {found / row['tokens'] - 1:+.1%} |")


if __name__ == "__main__":
    main()
