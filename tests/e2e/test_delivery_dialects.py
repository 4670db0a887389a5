"""What providers say when they refuse, in every API mode: requests that do not fit, and targets that do not serve."""

import json
from typing import Any

import pytest

from app.domain.model import ApiMode
from app.simulator import RawPiece, RawScript, Script, raw_script
from tests.e2e.chains import MESSAGES, Link, chain, every_mode, failures, goes_on, pair, run_as_json
from tests.e2e.stage import Stage
from tests.e2e.wire import DONE, chunk, data

pytestmark = pytest.mark.asyncio(loop_scope="module")


def refusal(status: int, error: Any, **headers: str) -> RawScript:
    """A response with an error status and a JSON body, or the bytes given."""
    body = error if isinstance(error, bytes) else json.dumps(error).encode()
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return RawScript(pieces=(RawPiece(data=body),), status=status, content_type="application/json", headers=named)


def said(message: str, status: int = 400, **fields: Any) -> RawScript:
    """An error in OpenAI's shape."""
    return refusal(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **fields}})


def said_by_anthropic(message: str, status: int = 400, kind: str = "invalid_request_error") -> RawScript:
    return refusal(status, {"type": "error", "error": {"type": kind, "message": message}})


VLLM = (
    "This model's maximum context length is 8192 tokens. However, you requested 1024 output tokens and your prompt contains at least 7900"
    " input tokens, for a total of at least 8924 tokens. Please reduce the length of the input prompt or the number of requested"
    " output tokens."
)
OVERFLOWS: dict[str, RawScript] = {
    "anthropic prompt": said_by_anthropic("prompt is too long: 218844 tokens > 200000 maximum"),
    "anthropic sum": said_by_anthropic(
        "input length and max_tokens exceed context limit: 190123 + 16384 > 200000, decrease input length or max_tokens and try again"
    ),
    "anthropic bytes": said_by_anthropic("Request exceeds the maximum size", 413, "request_too_large"),
    "openai code": said("Too long.", code="context_length_exceeded"),
    "openai length": said("This model's maximum context length is 128000 tokens. However, your messages resulted in 130512 tokens."),
    "openai window": said("Your input exceeds the context window of this model. Please adjust your input and try again."),
    "proxy requested": said("Requested token count exceeds the model's maximum context length of 131072 tokens"),
    "proxy input": said("Input length (140001) exceeds model's maximum context length (131072)."),
    "openrouter endpoint": said(
        "This endpoint's maximum context length is 65536 tokens. However, you requested about 70000 tokens (text)."
    ),
    "openrouter input": said("Input length 70000 exceeds the maximum allowed input length of 65536 tokens."),
    "vllm": said(VLLM),
    "google": refusal(
        400,
        {
            "error": {
                "code": 400,
                "message": "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576)",
                "status": "INVALID_ARGUMENT",
            }
        },
    ),
    "bedrock": refusal(400, {"message": "Input is too long for requested model"}, x_amzn_errortype="ValidationException"),
    "xai": refusal(
        400, {"code": "Client error", "error": "This model's maximum prompt length is 131072 but the request contains 140000 tokens"}
    ),
    "groq": said("Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192"),
    "mistral": refusal(
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        },
    ),
    "together": said("The input (40000 tokens) is longer than the model's context length (32768 tokens)."),
    "perplexity": said("The total length of all messages is too long."),
    "copilot": said("prompt token count of 140000 exceeds the limit of 128000"),
    "minimax": said("invalid params, context window exceeds limit"),
    "kimi": said("Your request exceeded model token limit: 131072 (requested: 140000)"),
    "glm": said("tokens in request more than max tokens allowed"),
    "dashscope": refusal(
        400,
        {
            "error": {
                "code": "invalid_parameter_error",
                "message": "Range of input length should be [1, 30720]",
                "type": "invalid_request_error",
            }
        },
    ),
    "llama.cpp": refusal(
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
            }
        },
    ),
    "lm studio": refusal(400, {"error": "The number of tokens to keep from the initial prompt is greater than the context length"}),
    "ollama": refusal(400, {"error": "prompt too long; exceeded max context length by 512 tokens"}),
    "atlas": said("Prompt too long: 70000 tokens exceeds max_seq_len 65536"),
}
IN_STREAM: dict[ApiMode, dict[str, RawScript]] = {
    ApiMode.CHAT_COMPLETIONS: {
        "glm label": raw_script(chunk({"role": "assistant", "content": ""}) + chunk(finish="model_context_window_exceeded") + DONE),
        "error": raw_script(data({"error": {"code": "context_length_exceeded", "message": "too long"}})),
    },
    ApiMode.RESPONSES: {
        "failed": raw_script(
            data(
                {
                    "type": "response.failed",
                    "response": {"id": "resp_x", "status": "failed", "error": {"code": "context_length_exceeded", "message": "too long"}},
                }
            )
        ),
        "error": raw_script(data({"type": "error", "code": "context_length_exceeded", "message": "too long", "param": None})),
    },
    ApiMode.ANTHROPIC_MESSAGES: {
        "label": raw_script(
            data({"type": "message_start", "message": {"id": "msg_x", "usage": {"input_tokens": 9, "output_tokens": 0}}})
            + data({"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}, "usage": {"output_tokens": 0}})
            + data({"type": "message_stop"})
        ),
        "error": raw_script(
            data({"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"}})
        ),
    },
}


@every_mode
async def test_a_request_that_does_not_fit_is_understood_in_every_dialect_and_goes_to_one_that_takes_it(
    stage: Stage, mode: ApiMode
) -> None:
    provider, backup = stage.provider, stage.backup
    async with pair(stage, mode) as client:
        session = await client.session()
        for name, script in {**OVERFLOWS, **IN_STREAM[mode]}.items():
            provider.clear()
            provider.play(*[script] * 3)
            frames = await client.run(session, name)
            assert failures(frames) == [("p1", "context_overflow")], name
            assert (frames[-1].type, frames[-1].data["route"]["provider"]) == ("turn.completed", "p2"), name
            assert len(provider.requests) == 1, name
        provider.clear()
        await goes_on(client, session, provider, backup)


UNSERVED: dict[str, tuple[str | Script | RawScript, str, int]] = {
    "404": (said("The model `m` does not exist", 404, code="model_not_found"), "model_not_found", 404),
    "404 page": (RawScript(pieces=(RawPiece(data=b"<html>nginx</html>"),), status=404, content_type="text/html"), "model_not_found", 404),
    "region": (said("Country, region, or territory not supported", 403, code="unsupported_country_region_territory"), "forbidden", 403),
    "model code": (said("The requested model is not supported.", code="model_not_supported"), "model_not_found", 400),
    "model of this key": (said("Model m is not available for this API key"), "model_not_found", 400),
}


@every_mode
async def test_a_target_that_does_not_serve_is_left_at_once_and_the_switch_is_told(stage: Stage, mode: ApiMode) -> None:
    for name, (script, reason, status) in UNSERVED.items():
        stage.reset()
        async with pair(stage, mode) as client:
            stage.provider.play(*[script] * 3)
            session = await client.session()
            frames = await client.run(session, '[[sim text="Served."]]')
            assert failures(frames) == [("p1", reason)], name
            assert next(frame.data["status"] for frame in frames if frame.type == "attempt.failed") == status
            (switch,) = (frame.data for frame in frames if frame.type == "provider.fallback")
            assert (switch["from_route"]["provider"], switch["to_route"]["provider"], switch["reason"]) == ("p1", "p2", reason), name
            assert frames[-1].data["output"] == "Served."
            assert (len(stage.provider.requests), len(stage.backup.requests)) == (1, 1), name
            stage.provider.clear()
            await goes_on(client, session, stage.provider, stage.backup)
            assert len(stage.provider.requests) == 0, "a target that does not serve is not asked again soon"


@every_mode
async def test_a_proxys_page_is_a_server_error_and_nobody_sees_it(stage: Stage, mode: ApiMode) -> None:
    provider, backup = stage.provider, stage.backup
    async with pair(stage, mode) as client:
        provider.play(*["html_status=524"] * 5)
        session = await client.session()
        frames = await client.run(session, '[[sim text="Served."]]')
        assert failures(frames) == [("p1", "server_error")] * 2
        assert frames[-1].data["output"] == "Served."
        shown = b"".join(frame.raw for frame in frames)
        assert not any(word in shown for word in (b"<h1>", b"Ray ID", b"0123456789abcdef"))
        provider.clear()
        await goes_on(client, session, provider, backup)
    async with chain(stage, Link(url=provider.base_url, mode=mode), max_attempts=1) as alone:
        provider.play("html_status=524")
        status, problem = await run_as_json(alone, await alone.session(), "hello")
        assert (status, problem["code"]) == (503, "provider_unavailable")
        assert not any(word in json.dumps(problem) for word in ("<h1>", "Ray ID", "0123456789abcdef"))


@every_mode
async def test_a_wrong_parameter_is_the_callers_and_ends_the_turn_at_once(stage: Stage, mode: ApiMode) -> None:
    provider, backup = stage.provider, stage.backup
    words = "temperature must be <= 2"
    async with pair(stage, mode) as client:
        provider.play(said_by_anthropic(words) if mode is MESSAGES else said(words))
        session = await client.session()
        frames = await client.run(session)
        assert failures(frames) == [("p1", "invalid_request")]
        assert frames[-1].type == "turn.failed"
        assert words in frames[-1].data["error"]["detail"]
        assert (len(provider.requests), len(backup.requests)) == (1, 0)
        await goes_on(client, session, provider, backup)
