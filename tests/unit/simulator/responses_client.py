"""A small client of the simulator's Responses mode: sends a request, reads the answer, judges nothing."""

import asyncio
from typing import Any

import aiohttp

from tests.unit.simulator.client import Answer

GET_TIME = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}


class ResponsesAnswer(Answer):
    """An answer with the events of a Responses stream."""

    def deltas_of(self, kind: str) -> list[str]:
        return [event["delta"] for event in self.events if event["type"] == f"response.{kind}.delta"]

    @property
    def said(self) -> str:
        return "".join(self.deltas_of("output_text"))

    @property
    def response(self) -> dict[str, Any]:
        """The response in the last event."""
        found = self.events[-1]["response"]
        assert isinstance(found, dict)
        return found

    @property
    def output(self) -> list[dict[str, Any]]:
        """The items in the last event."""
        items = self.response["output"]
        assert isinstance(items, list)
        return items

    @property
    def called(self) -> list[tuple[str, str]]:
        """Names and arguments of the calls, put together of their events."""
        calls: dict[str, list[str]] = {}
        for event in self.events:
            if event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call":
                calls[event["item"]["id"]] = [event["item"]["name"], ""]
            elif event["type"] == "response.function_call_arguments.delta":
                calls[event["item_id"]][1] += event["delta"]
        return [(name, arguments) for name, arguments in calls.values()]


class ResponsesClient:
    """Talks to one simulator over a pooled aiohttp session."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._url = f"{base_url}/responses"

    async def ask(self, given: Any = "hello", *, within_s: float = 10.0, **fields: Any) -> ResponsesAnswer:
        """Send one user text (or a whole input); stop reading after `within_s` (broken = "timeout")."""
        answer = ResponsesAnswer()
        body = {"model": "m-test", "stream": True, "store": False, "input": given, **fields}
        try:
            async with asyncio.timeout(within_s):
                await self._read(body, answer)
        except TimeoutError:
            answer.broken = "timeout"
        except (aiohttp.ClientError, ConnectionError) as error:
            answer.broken = type(error).__name__
        return answer

    async def _read(self, body: dict[str, Any], answer: ResponsesAnswer) -> None:
        async with self._session.post(self._url, json=body) as response:
            answer.status, answer.headers = response.status, {name.lower(): value for name, value in response.headers.items()}
            async for piece in response.content.iter_any():
                answer.raw += piece
