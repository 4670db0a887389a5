import pytest

from app.cli.reader import Reader
from app.cli.sse import Event

TEXT = "The quick brown fox jumps over the lazy dog, and then, without any haste, it walks home through the rain. " * 3


def delta(seq: int, text: str) -> Event:
    return Event(seq, "message.delta", {"text": text})


def test_text_flows_within_eighty_columns_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader()
    for seq, start in enumerate(range(0, len(TEXT), 7)):
        reader.show(delta(seq, TEXT[start : start + 7]))
    reader.note("done")
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) < 80
    assert " ".join(" ".join(lines[:-1]).split()) == TEXT.strip()


def test_events_are_lines_between_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader()
    reader.begin("What time is it?")
    reader.show(Event(1, "turn.started", {"route": {"provider": "simulator", "model": "m"}}))
    reader.show(delta(2, "Let me"))
    reader.show(delta(3, " look."))
    reader.show(Event(4, "tool.started", {"name": "get_time", "arguments": "{}"}))
    reader.show(Event(5, "tool.completed", {"name": "get_time", "output": "x" * 5_000}))
    reader.show(Event(6, "iteration.started", {"iteration": 2}))
    reader.show(Event(7, "a.type.of.later", {}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "you: What time is it?",
        "[1] turn.started  simulator, model m",
        "   Let me look.",
        "[4] tool.started  get_time {}",
    ]
    assert lines[-1] == "[7] a.type.of.later"
    assert len(lines) < 12
    assert reader.tools == ["get_time"]


@pytest.mark.parametrize(
    ("event_type", "data", "shown"),
    [
        ("turn.completed", {"reason": "answer", "usage": {"input_tokens": 3, "output_tokens": 4}}, "answer; 3 tokens in, 4 out"),
        ("turn.failed", {"reason": "provider_unavailable", "error": {"detail": "No route."}}, "provider_unavailable: No route."),
        ("attempt.failed", {"reason": "rate_limit", "message": "Slow down."}, "rate_limit: Slow down."),
    ],
    ids=["completed", "failed", "attempt"],
)
def test_ends_say_why(event_type: str, data: dict[str, object], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    Reader().show(Event(9, event_type, data))
    assert capsys.readouterr().out == f"[9] {event_type}  {shown}\n"
