"""The schema has the standard keys, says its own rules, and costs no torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from titan.config import Config, load
from titan.config.unsupported import INSTEAD
from titan.config.wording import rule_of

pytestmark = pytest.mark.quick
STANDARD = Path(__file__).with_name("standard_keys.toml")


def fields(model: type[BaseModel], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += fields(inner, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", field))
    return found


def test_importing_the_configuration_loads_no_torch() -> None:
    code = (
        "import sys; from titan.config import Config, resolve; from titan.config.schema import Training, Debug\n"
        "c = Config(training=Training(global_batch_size=8, steps=2))\n"
        "r = resolve(c, 1, 'cpu'); print(r.batch.global_rows, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["8", "False"], done.stderr


def test_every_standard_key_loads_at_its_default_and_is_ours_too() -> None:
    config = load(STANDARD)
    ours = {key for key, _ in fields(Config)}
    text = STANDARD.read_text()
    section, theirs = "", set()
    for line in text.splitlines():
        if header := re.fullmatch(r"\[(.+)\]", line):
            section = header[1]
        elif key := re.match(r"(?:# )?(\w+) (?:=|is unset)", line):
            theirs.add(f"{section}.{key[1]}")
    assert len(theirs) == 149
    assert theirs <= ours
    other = [key for key in theirs if _at(config, key) != _at(Config(), key)]
    # Where our default is another one, the field's docstring says so.
    assert sorted(other) == ["model.hf_assets_path", "training.dataset"]
    documented = dict(fields(Config))
    assert all("our default" in documented[key].description for key in other)


def _at(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def test_each_field_has_a_docstring_and_a_rule_in_words() -> None:
    for key, field in fields(Config):
        assert field.description, key
        assert not re.search(r"<class|typing|Literal", rule_of(field)), f"{key}: {rule_of(field)}"


def test_the_table_of_unsupported_keys_names_only_keys_that_exist() -> None:
    assert set(INSTEAD) <= {key for key, _ in fields(Config)}


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().training.steps = 3  # type: ignore[misc]
