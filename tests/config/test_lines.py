"""The line of each key, whatever stands around it."""

from __future__ import annotations

import tomllib

import pytest

from titan.config.files import dotted_keys
from titan.config.lines import line_numbers

pytestmark = pytest.mark.quick

TEXT = """\
# [not.a.header]
top = 1
a.dotted . "key" = 2

[section] # comment = 3
text = "in = 1 # no"
long = \"\"\"
[inside]
key = 1
quotes \\\"\"\" and \"\"\"\"
literal = '''
x = 1
'''
list = [
  # y = 2
  [1, 2], "z = 3",
  { in_a = 1, 'list' = [
      2] },
]
empty = {}
after = 1

[ section . "sub table" ]
inline = { one = 1, two.three = { four = [1] }, five = "}" }
last = 2024-01-01 07:32:00

[[array.of]]
name = 1
[[array.of]]
name = 2
"""

WANTED = {
    "top": 2,
    "a.dotted.key": 3,
    "section": 5,
    "section.text": 6,
    "section.long": 7,
    "section.literal": 11,
    "section.list": 14,
    "section.list.in_a": 17,
    "section.list.list": 17,
    "section.empty": 20,
    "section.after": 21,
    "section.sub table": 23,
    "section.sub table.inline": 24,
    "section.sub table.inline.one": 24,
    "section.sub table.inline.two.three": 24,
    "section.sub table.inline.two.three.four": 24,
    "section.sub table.inline.five": 24,
    "section.sub table.last": 25,
    "array.of": 27,
    "array.of.name": 28,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_each_key_is_found_on_its_line_and_nothing_in_strings_or_comments(newline: str) -> None:
    text = TEXT.replace("\n", newline)
    assert line_numbers(text) == WANTED
    # Tables that dots make have no line of their own; all else that tomllib finds has one.
    made_by_dots = {"a", "a.dotted", "section.sub table.inline.two", "array"}
    assert set(dotted_keys(tomllib.loads(text))) - made_by_dots <= set(WANTED)
