"""History repair: what the model is shown is valid for every provider, whatever the rows say.

Rules: every tool call has exactly one result, in call order, right behind its assistant message; results that answer nothing are left
out; neighbouring messages of one role are joined; blank messages are left out. Repair is a pure function of the rows, so the same
rows always give the same bytes, and what a turn appends is valid by itself, so repairing a valid history changes nothing.
"""

from collections.abc import Iterable, Sequence

from app.domain.messages import Content, ContentPart, Message, MessageKind, Role, ToolCall
from app.domain.tools import INTERRUPTED_OUTPUT
from app.domain.turns import Completed, Failed, Interrupted, Outcome

INTERRUPTED_NOTE = "[This turn was interrupted before an answer was given.]"
FAILED_NOTE = "[This turn failed before an answer was given.]"
CUT_MARK = "[Interrupted here.]"


def repair(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return a valid history made of ``messages``; the input stays as it is."""
    history = _History()
    for message in messages:
        history.add(message)
    return tuple(history.messages())


def unanswered(placed: Iterable[tuple[int, Message]]) -> list[tuple[int, ToolCall]]:
    """Calls of a history that have no result, each with the place (``seq``) reserved for its result.

    ``placed`` are pairs of seq and message in order. The result of call ``i`` of an assistant message at ``seq`` belongs at
    ``seq + 1 + i``.
    """
    open_calls: dict[int, ToolCall] = {}
    for seq, message in placed:
        open_calls.pop(seq, None)
        for index, call in enumerate(message.tool_calls):
            open_calls[seq + 1 + index] = call
    return sorted(open_calls.items(), key=lambda item: item[0])


def interrupted_result(call: ToolCall) -> Message:
    """The result of a call whose outcome nobody knows."""
    return Message(role=Role.TOOL, content=INTERRUPTED_OUTPUT, tool_call_id=call.id, tool_name=call.name, is_error=True)


def closing_note(outcome: Outcome, *, keep_text: bool) -> Message | None:
    """The assistant message that stands where the answer of a turn is missing, so that roles go on alternating.

    By default a note, shown to the model only; with ``keep_text`` the partial text, marked as cut.
    """
    match outcome:
        case Completed():
            return None
        case Interrupted(output=output) if keep_text and output.strip():
            return Message(role=Role.ASSISTANT, content=f"{output}\n\n{CUT_MARK}")
        case Interrupted():
            return Message(role=Role.ASSISTANT, content=INTERRUPTED_NOTE, kind=MessageKind.NOTE)
        case Failed():
            return Message(role=Role.ASSISTANT, content=FAILED_NOTE, kind=MessageKind.NOTE)


class _History:
    """A history as it is put together, message by message."""

    def __init__(self) -> None:
        self._joined: list[Message] = []
        """Everything but results, neighbours of one role joined."""
        self._answered = False
        """Whether the last of them has a result: when the assistant speaks again behind it, that is another message."""
        self._asked: dict[str, int] = {}
        """By call id the place of the newest message that has it: ids can come back, some providers count from zero in each answer."""
        self._results: dict[tuple[int, str], Message] = {}
        """By place and call id; only the first one counts."""

    def add(self, message: Message) -> None:
        if message.role is Role.TOOL:
            self._add_result(message)
        elif message.tool_calls or not _blank(message.content):
            self._add_spoken(message)

    def messages(self) -> Iterable[Message]:
        """Everything, with one result for each call right behind its message."""
        for place, message in enumerate(self._joined):
            yield message
            for call in message.tool_calls:
                yield _result(call, self._results.get((place, call.id)))

    def _add_result(self, message: Message) -> None:
        call_id = message.tool_call_id
        place = None if call_id is None else self._asked.get(call_id)
        if call_id is None or place is None:
            return
        self._results.setdefault((place, call_id), message)
        self._answered = self._answered or place == len(self._joined) - 1

    def _add_spoken(self, message: Message) -> None:
        last = self._joined[-1] if self._joined else None
        if last is None or last.role is not message.role or self._answered:
            self._joined.append(_unique_calls(message))
            self._answered = False
        elif message.role is Role.USER:
            self._joined[-1] = Message(role=Role.USER, content=_join_content(last.content, message.content, "\n\n"))
        else:
            self._joined[-1] = _join_assistants(last, message)
        self._asked.update((call.id, len(self._joined) - 1) for call in message.tool_calls)


def _join_assistants(first: Message, second: Message) -> Message:
    reasoning = "\n\n".join(part for part in (first.reasoning, second.reasoning) if part)
    return _unique_calls(
        Message(
            role=Role.ASSISTANT,
            content=_join_content(first.content, second.content, "\n"),
            tool_calls=first.tool_calls + second.tool_calls,
            reasoning=reasoning or None,
        )
    )


def _unique_calls(message: Message) -> Message:
    calls = {call.id: call for call in reversed(message.tool_calls)}
    if len(calls) == len(message.tool_calls):
        return message
    return Message(
        role=message.role,
        content=message.content,
        tool_calls=tuple(reversed(calls.values())),
        reasoning=message.reasoning,
        kind=message.kind,
    )


def _result(call: ToolCall, found: Message | None) -> Message:
    if found is None:
        return interrupted_result(call)
    if _blank(found.content):
        return Message(role=Role.TOOL, content="(empty)", tool_call_id=call.id, tool_name=call.name, is_error=found.is_error)
    return found


def _blank(content: Content) -> bool:
    return not content.strip() if isinstance(content, str) else not content


def _join_content(first: Content, second: Content, separator: str) -> Content:
    if isinstance(first, str) and isinstance(second, str):
        return separator.join(part for part in (first, second) if part)
    return _parts(first) + _parts(second)


def _parts(content: Content) -> list[ContentPart]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content
