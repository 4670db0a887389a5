"""The official client of OpenAI, pointed at a gateway."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage

from tests.e2e.harness import Client

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
FLAT_WEATHER: Any = {"type": "function", **WEATHER["function"]}
ASK_WEATHER = '[[sim tool=weather args={"city":"Bern"} text="It rains."]] What about Bern?'


def user(text: str) -> Any:
    """A user's message."""
    return {"role": "user", "content": text}


def result(call_id: str, text: str) -> Any:
    """The result of a tool call."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def spoken(message: ChatCompletionMessage) -> Any:
    """An assistant's message, to be sent again."""
    return message.model_dump(exclude_none=True)


@asynccontextmanager
async def openai_of(client: Client, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    """The official client with the key of ``client``; it repeats nothing by itself unless told to."""
    key = client.http.headers["authorization"].removeprefix("Bearer ")
    base_url = str(client.http.base_url).rstrip("/") + "/v1"
    async with AsyncOpenAI(**{"api_key": key, "base_url": base_url, "max_retries": 0, **options}) as openai:
        yield openai


def streamed_text(chunks: Sequence[ChatCompletionChunk]) -> str:
    """What a client shows in the end."""
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def finish_of(chunks: Sequence[ChatCompletionChunk]) -> str | None:
    """How the stream says it ended."""
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert len(reasons) == 1
    return reasons[0]


def turn_of(answer_id: str) -> str:
    """The turn behind an answer."""
    return "turn_" + answer_id.removeprefix("chatcmpl-").removeprefix("resp_")
