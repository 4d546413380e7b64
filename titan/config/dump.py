"""Writes a configuration as TOML that loads to the same configuration, values with their origins where known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from titan.config.schema import Config
from titan.config.toml_text import key_text, value_text


def dump(config: Config) -> str:
    """The whole configuration, defaults included.

    Unset keys (None) are commented out, since TOML has no null; a field whose default is not None says "none". The
    origin of each value (file and line, command line, default) stands behind it where `config.origins` has any.
    """
    return "\n".join(_table(config, "", config.origins or None)).lstrip("\n") + "\n"


def write_record(config: Config, folder: Path) -> None:
    """Writes config.toml into the run folder, and the JSON of torchtitan's users where `job.save_config_file` asks."""
    (folder / "config.toml").write_text(dump(config), encoding="utf-8")
    if config.job.save_config_file is not None:
        target = folder / config.job.save_config_file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _table(model: BaseModel, prefix: str, origins: Mapping[str, str] | None) -> list[str]:
    lines, tables = [], []
    for name, field in type(model).model_fields.items():
        key, value = f"{prefix}{name}", getattr(model, name)
        if isinstance(value, BaseModel):
            tables += ["", f"[{key}]", *_table(value, f"{key}.", origins)]
        elif isinstance(value, dict):
            tables += ["", f"[{key}]", *_free(value, f"{key}.", origins)] if value else []
        elif value is None and field.default is None:
            lines.append(f"# {name} is not set")
        else:
            lines.append(f"{name} = {value_text('none' if value is None else value)}{_origin(key, origins)}")
    return lines + tables


def _free(table: Mapping[str, Any], prefix: str, origins: Mapping[str, str] | None) -> list[str]:
    """A table without a schema; tables inside are written in line."""
    return [f"{key_text(name)} = {value_text(value)}{_origin(prefix + name, origins)}" for name, value in table.items()]


def _origin(key: str, origins: Mapping[str, str] | None) -> str:
    return "" if origins is None else f"  # {origins.get(key, 'default')}"
