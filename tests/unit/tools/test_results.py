"""Results: text from any value, clean and capped."""

import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from collections import OrderedDict, deque
from pathlib import PurePosixPath
from typing import Any

import msgspec
import pydantic
import pytest
from typing_extensions import override

from app.domain.tools import ToolOutcome
from app.tools.results import MAX_OUTPUT, outcome

PNG = b"\x89PNG\r\n\x1a\n" + bytes(1000)


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float
    label: str


class Row(msgspec.Struct):
    image: bytes


class Model(pydantic.BaseModel):
    day: datetime.date


class Text(str):
    __slots__ = ()


class Plain:
    pass


class Named:
    @override
    def __str__(self) -> str:
        return "a name"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("hello", "hello"),
        ("", "(no output)"),
        (None, "(no output)"),
        (True, "true"),
        (3, "3"),
        (2**80, str(2**80)),
        (math.nan, "null"),
        ({"b": math.inf, "a": [math.nan, 1.5]}, '{"a":[null,1.5],"b":null}'),
        ("a\x00b", "a\ufffdb"),
        ("a\ud800b", "a\ufffdb"),
        ("\ud83e\udd80", "🦀"),
        ({"k\x00": "v\ud800"}, '{"k\ufffd":"v\ufffd"}'),
        ({"ä": "ü"}, '{"ä":"ü"}'),
        ({1: "a", None: "b", (1, 2): "c"}, '{"(1, 2)":"c","1":"a","None":"b"}'),
        (PNG, "[binary data of 1,008 bytes, not shown; a tool returns text as str]"),
        ([bytearray(2)], '["[binary data of 2 bytes, not shown; a tool returns text as str]"]'),
        (memoryview(b"abc"), "[binary data of 3 bytes, not shown; a tool returns text as str]"),
        (Row(PNG), '{"image":"[binary data of 1,008 bytes, not shown; a tool returns text as str]"}'),
        ({3, 1, 2}, "[1,2,3]"),
        ({"b", 1}, '["b",1]'),
        ((1, frozenset()), "[1,[]]"),
        (OrderedDict(z=1, a=Text("t")), '{"a":"t","z":1}'),
        (Text("t"), "t"),
        (datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC), '"2026-01-02T03:00:00Z"'),
        (decimal.Decimal("1.50"), '"1.50"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Color.RED, '"red"'),
        (Point(math.nan, "p"), '{"label":"p","x":null}'),
        (Model(day=datetime.date(2026, 1, 2)), '{"day":"2026-01-02"}'),
        (PurePosixPath("a/b"), '"a/b"'),
        (deque([1]), '"deque([1])"'),
        (Plain(), '"<Plain>"'),
        ([Named()], '["a name"]'),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_a_value_becomes_text(value: object, text: str) -> None:
    assert outcome(value) == ToolOutcome(output=text)


def test_a_value_that_holds_itself_raises() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        outcome(loop)


@pytest.mark.parametrize(
    "text",
    [
        "A" + "x" * 5_000_000 + "Z",
        "A" + "€" * 150_000 + "Z",
        "A" + "🦀" * 100_000 + "Z",
        "A" + "\x00" * 200_000 + "Z",
        "A" + "\ud800" * 200_000 + "Z",
    ],
    ids=["5 MB", "3 bytes", "4 bytes", "nul", "surrogates"],
)
def test_a_long_text_keeps_head_and_tail_and_says_what_is_missing(text: str) -> None:
    shown = outcome(text).output
    assert len(shown) <= MAX_OUTPUT
    assert shown.startswith("A")
    assert shown.endswith("Z")
    assert f"of {len(text):,} characters are left out" in shown
    assert outcome(text).output == shown
    shown.encode()


def test_the_number_left_out_is_exact() -> None:
    text = "x" * 150_000
    shown = outcome(text).output
    left_out = int(shown.split("[… ")[1].split(" of ")[0].replace(",", ""))
    assert shown.count("x") == len(text) - left_out


def test_the_cap_holds_for_json_and_for_errors_and_not_below_it() -> None:
    assert len(outcome(list(range(300_000))).output) <= MAX_OUTPUT
    failure = outcome(ToolOutcome(output="x" * 200_000, is_error=True))
    assert len(failure.output) <= MAX_OUTPUT
    assert failure.is_error
    assert outcome("x" * MAX_OUTPUT).output == "x" * MAX_OUTPUT


def test_json_is_the_same_for_the_same_value() -> None:
    assert outcome({"a": 1, "b": 2}) == outcome({"b": 2, "a": 1})
    assert json.loads(outcome({"b": {"y": 1, "x": 2}}).output) == {"b": {"x": 2, "y": 1}}
