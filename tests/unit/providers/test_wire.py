import json
from typing import Any

import pytest

from app.domain.messages import ToolCall, ToolSpec
from app.providers.wire import CallIds, ToolsetEncoder, encode_content, is_object, legal_tool_name


@pytest.mark.parametrize(
    ("name", "legal"),
    [("look_up-2", "look_up-2"), ("a.b c", "a_b_c"), ("é", "_"), ("x" * 65, "x" * 64), ("", "unnamed")],
    ids=["legal", "dots-and-blanks", "letters", "long", "empty"],
)
def test_names_are_made_legal(name: str, legal: str) -> None:
    assert legal_tool_name(name) == legal


@pytest.mark.parametrize(
    ("text", "answer"),
    [("{}", True), ('{"a": [1]}', True), ("", False), ("[]", False), ('{"a"', False), ("{}{}", False), ('{"a":"\ud800"}', False)],
)
def test_objects_are_told_from_other_text(text: str, answer: bool) -> None:
    assert is_object(text) is answer


@pytest.mark.parametrize(
    ("content", "written"),
    [
        ("a\x00\ud83e\udd8a", "a\ufffd🦊"),
        ([{"type": "text", "text": "é"}], [{"type": "text", "text": "é"}]),
        ([{"type": "text", "text": "\ud800"}], [{"type": "text", "text": "\ufffd"}]),
    ],
    ids=["text", "parts", "parts-to-be-cleaned"],
)
def test_content_is_written_without_what_is_no_unicode(content: Any, written: Any) -> None:
    assert json.loads(encode_content(content)) == written


def calls(*ids: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call_id, "f", "{}") for call_id in ids)


def test_every_call_has_an_id_of_its_own_and_each_result_that_of_its_call() -> None:
    ids = CallIds()
    assert ids.of_calls(calls("a", "a", "")) == ["a", "a_2", "call"]
    assert [ids.of_result(call_id) for call_id in ("a", "", "a")] == ["a", "call", "a_2"]
    assert ids.of_calls(calls("a")) == ["a_3"]
    assert [ids.of_result("a"), ids.of_result("a"), ids.of_result("never-called")] == ["a_3", "a_3", "never-called"]


def test_ids_are_made_fit_for_the_protocol() -> None:
    ids = CallIds(lambda call_id: call_id[:3])
    assert ids.of_calls(calls("abcd", "abce")) == ["abc", "abc_2"]
    assert [ids.of_result("abce"), ids.of_result("abcd"), ids.of_result("other")] == ["abc_2", "abc", "oth"]


def test_a_list_of_tools_is_written_once() -> None:
    written: list[str] = []

    def form(tool: ToolSpec) -> dict[str, Any]:
        written.append(tool.name)
        return {"name": tool.name, "a": 1}

    toolsets = [(ToolSpec(name=f"t{number}", description="", parameters={}),) for number in range(65)]
    encoder = ToolsetEncoder(form)
    assert encoder.encode(toolsets[0]) == encoder.encode(toolsets[0]) == b'[{"a":1,"name":"t0"}]'
    assert written == ["t0"]
    for tools in toolsets[1:]:
        encoder.encode(tools)
        encoder.encode(toolsets[0])
    assert len(written) == 65
    encoder.encode(toolsets[1])
    assert written[-1] == "t1"
