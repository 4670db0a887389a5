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
    return tuple(_with_results(_joined(messages), messages))


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


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Everything but tool results, neighbours of one role joined."""
    joined: list[Message] = []
    for position, message in enumerate(messages):
        if message.role is Role.TOOL or (_blank(message.content) and not message.tool_calls):
            continue
        last = joined[-1] if joined else None
        if last is None or last.role is not message.role:
            joined.append(_unique_calls(message))
        elif message.role is Role.USER:
            joined[-1] = Message(role=Role.USER, content=_join_content(last.content, message.content, "\n\n"))
        elif _answered_between(messages, position):
            joined.append(_unique_calls(message))
        else:
            joined[-1] = _join_assistants(last, message)
    return joined


def _answered_between(messages: Sequence[Message], position: int) -> bool:
    """Whether the message before ``position`` is a result: then the assistant spoke again after its calls."""
    return position > 0 and messages[position - 1].role is Role.TOOL


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


def _with_results(joined: list[Message], messages: Sequence[Message]) -> Iterable[Message]:
    """Put behind each assistant message one result for each of its calls."""
    results = _Results(messages)
    for message in joined:
        yield message
        for call in message.tool_calls:
            yield results.take(call)


class _Results:
    """The results of a history by call id, in order, each used once."""

    def __init__(self, messages: Sequence[Message]) -> None:
        # An id can come back in a later answer (some providers count from zero in each), so results queue up per id, but only
        # the first one behind each call counts: a second one for the same call is dropped.
        self._by_id: dict[str, list[Message]] = {}
        called: dict[str, int] = {}
        for message in messages:
            for call in message.tool_calls:
                called[call.id] = called.get(call.id, 0) + 1
            key = message.tool_call_id
            if message.role is Role.TOOL and key is not None and key in called:
                queue = self._by_id.setdefault(key, [])
                if len(queue) < called[key]:
                    queue.append(message)

    def take(self, call: ToolCall) -> Message:
        queue = self._by_id.get(call.id)
        if not queue:
            return interrupted_result(call)
        result = queue.pop(0)
        return (
            result
            if not _blank(result.content)
            else Message(role=Role.TOOL, content="(empty)", tool_call_id=call.id, tool_name=call.name, is_error=result.is_error)
        )


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
