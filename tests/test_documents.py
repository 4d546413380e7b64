"""The pages for people: links lead somewhere, and the configuration that the README shows is one that can run."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from titan.cli import COMMANDS
from titan.commands import check
from titan.data.tokenizer import SHIPPED

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_within_the_repository_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.quick
def test_the_readme_shows_every_command_but_those_that_train_and_none_that_is_not_there() -> None:
    shown = set(re.findall(r"`titan (\w+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert shown == set(COMMANDS) - {"launch", "train"}  # those are in docs/running.md


@pytest.mark.quick
def test_the_configuration_of_the_readme_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Train your own")[1]
    lines = re.match(r"\s*\n((?:    .*\n|\n)+)", section)
    assert lines is not None
    (tmp_path / "mine.toml").write_text(textwrap.dedent(lines[1]))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"text": "one document"}\n')
    (tmp_path / "my_tokenizer").symlink_to(SHIPPED)
    monkeypatch.chdir(tmp_path)
    assert check.main(["mine.toml"]) == 0, capsys.readouterr().err
    assert "8 layers, vocabulary 2048" in capsys.readouterr().out
