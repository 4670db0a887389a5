"""The seam between the simulator and an API mode: a mode reads, judges and answers requests."""

from dataclasses import dataclass
from typing import Any, Protocol

from app.simulator.reply import Reply
from app.simulator.script import ErrorText, Script


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """What choosing and playing a script needs to know of a request, whatever its API mode.

    `rounds_done` counts the rounds of tool calls after the newest user message;
    `prompt_tokens` is a rough count made from the size of the request.
    """

    model: str
    user_text: str
    rounds_done: int
    offers_tools: bool
    stream: bool
    include_usage: bool
    prompt_tokens: int


class ApiMode(Protocol):
    """One provider API. Modes are siblings: none imports another."""

    path: str
    """Path of the endpoint below the base URL, such as `/chat/completions`."""

    def read(self, body: dict[str, Any], size_bytes: int) -> RequestView | None:
        """Read what a script can depend on; None when the body is no request of this API at all.

        Odd values inside count as absent: judging them is the business of `problems`.
        """
        ...

    def problems(self, body: dict[str, Any], *, picky: bool) -> list[str]:
        """List what real providers refuse in this request."""
        ...

    def reply(self, script: Script, view: RequestView) -> Reply:
        """Turn a resolved script (see ScriptChooser) into bytes."""
        ...

    def error(self, status: int, error: ErrorText) -> Reply:
        """Answer with the provider's own error object."""
        ...
