"""What every section of the configuration is made of: the base class, and field types that say their rule in words.

Strict: an integer may stand for a float, nothing else converts, unknown keys are refused, nan and (but where a field
says so) infinity too. A field's docstring is its documentation; the reference page, the JSON Schema and the error
messages all come from the class, so a rule is written once. Where the annotation cannot say the rule well, `Rule` holds
the sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """One table of the TOML; frozen."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )


@dataclass(frozen=True)
class Rule:
    """The rule of a field in words, after "must be": read by the error messages and the reference page."""

    text: str


def _refuse(condition: Callable[[Any], bool]) -> AfterValidator:
    def validate(value: Any) -> Any:
        if condition(value):
            raise ValueError("refused by its rule")
        return value

    return AfterValidator(validate)


def _none_word(value: Any) -> Any:
    return None if value == "none" else value


PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Degree = Annotated[
    int,
    Field(ge=1),
    Rule("an integer >= 1 (only parallelism.data_parallel_shard_degree may be -1, the ranks that are left)"),
]
PositiveOrRest = Annotated[int, Field(ge=-1), _refuse(lambda value: value == 0), Rule("an integer >= 1, or -1")]
NonEmpty = Annotated[str, Field(min_length=1), Rule("a string that is not empty")]
EveryNth = Annotated[
    str, Field(pattern=r"^(op|[1-9][0-9]*)$"), Rule("'op', or a whole number >= 1 in quotes (every n-th block)")
]
WordNone = BeforeValidator(_none_word)
"""TOML has no null: the word "none" stands for it where None is not the default."""
