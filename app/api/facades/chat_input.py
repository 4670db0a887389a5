"""Chat completions' messages as a history of ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.api.imports import ImportedHistory, read_history
from app.domain.errors import InvalidRequestError


def read_messages(items: Sequence[Mapping[str, Any]]) -> ImportedHistory:
    """Read the messages of a request. Raises InvalidRequestError with the place of what is wrong."""
    prepared: list[Mapping[str, Any]] = []
    for index, item in enumerate(items):
        if item.get("role") == "function" or item.get("function_call") is not None:
            raise InvalidRequestError(
                "Function messages are not supported any more: use tool_calls and messages of role tool.", pointer=f"/messages/{index}"
            )
        prepared.append(_with_refusal(item))
    return read_history(prepared, lenient=True)


def _with_refusal(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose only text is a refusal, with it as its content."""
    refusal = item.get("refusal")
    if isinstance(refusal, str) and refusal and not item.get("content"):
        return {**item, "content": refusal}
    return item
