"""A small client of the simulator: sends a chat request, reads the answer, judges nothing."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp

GET_TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


@dataclass(slots=True, kw_only=True)
class Answer:
    """What came back; `broken` names the transport error that ended it, if one did."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""
    broken: str | None = None

    @property
    def lines(self) -> list[str]:
        return [line for line in self.raw.decode().splitlines() if line]

    @property
    def data(self) -> list[str]:
        return [line.removeprefix("data: ") for line in self.lines if line.startswith("data: ")]

    @property
    def is_done(self) -> bool:
        return "[DONE]" in self.data

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.data if text != "[DONE]"]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        return [event["choices"][0]["delta"] for event in self.events if event.get("choices")]

    @property
    def text(self) -> str:
        return self.joined("content")

    @property
    def finish(self) -> str | None:
        reasons = [event["choices"][0]["finish_reason"] for event in self.events if event.get("choices")]
        return next((reason for reason in reasons if reason), None)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Names and arguments of the tool calls, put together by index."""
        built: dict[int, list[str]] = {}
        for piece in (piece for delta in self.deltas for piece in delta.get("tool_calls", [])):
            function = piece["function"]
            built.setdefault(piece["index"], [function.get("name", ""), ""])[1] += function["arguments"]
        return [(name, arguments) for name, arguments in built.values()]

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    def joined(self, name: str) -> str:
        return "".join(delta.get(name) or "" for delta in self.deltas)


class ChatClient:
    """Talks to one simulator over a pooled aiohttp session."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._url = f"{base_url}/chat/completions"

    async def ask(self, said: str | list[dict[str, Any]] = "hello", *, within_s: float = 10.0, **fields: Any) -> Answer:
        """Send one user text (or a whole history); stop reading after `within_s` (broken = "timeout")."""
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        answer = Answer()
        try:
            async with asyncio.timeout(within_s):
                await self._read({"model": "m-test", "stream": True, "messages": messages, **fields}, answer)
        except TimeoutError:
            answer.broken = "timeout"
        except (aiohttp.ClientError, ConnectionError) as error:
            answer.broken = type(error).__name__
        return answer

    async def _read(self, body: dict[str, Any], answer: Answer) -> None:
        async with self._session.post(self._url, json=body) as response:
            answer.status, answer.headers = response.status, {name.lower(): value for name, value in response.headers.items()}
            async for piece in response.content.iter_any():
                answer.raw += piece
