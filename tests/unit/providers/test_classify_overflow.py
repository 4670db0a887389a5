"""The dialects in which providers say that a request does not fit, each with the limit it names."""

import json
from datetime import UTC, datetime

import pytest

from app.domain.delivery import CooldownScope
from app.domain.model import FailureReason as Reason
from app.providers.classify import Failure, classify_error, classify_response

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


def anthropic(text: str, kind: str = "invalid_request_error") -> str:
    return json.dumps({"type": "error", "error": {"type": kind, "message": text}})


def openai(text: str, code: str | None = None) -> str:
    return json.dumps({"error": {"message": text, "type": "invalid_request_error", "param": "messages", "code": code}})


def openrouter(text: str) -> str:
    return json.dumps({"error": {"message": text, "code": 400, "metadata": {"provider_name": None}}})


def google(text: str) -> str:
    return json.dumps([{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}])


def flat(text: str) -> str:
    return json.dumps({"object": "error", "message": text, "type": "BadRequestError", "param": None, "code": 400})


def words(text: str) -> str:
    return json.dumps({"error": text})


def bedrock(text: str) -> str:
    return json.dumps({"__type": "ValidationException", "message": text})


LLAMA_CPP = {
    "code": 400,
    "message": "the request exceeds the available context size, try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 9123,
    "n_ctx": 8192,
}
OPENAI_LENGTH = "This model's maximum context length is 128000 tokens. However, your messages resulted in 131005 tokens."
VLLM = (
    "This model's maximum context length is 4096 tokens. However, you requested 1000 output tokens and your prompt contains at least"
    " 3500 input tokens, for a total of at least 4500 tokens. Please reduce the length of the input prompt."
)

OVERFLOWS: list[tuple[str, int, str, int | None]] = [
    ("anthropic", 400, anthropic("prompt is too long: 213456 tokens > 200000 maximum"), 200000),
    (
        "anthropic-with-max-tokens",
        400,
        anthropic("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens`"),
        200000,
    ),
    ("anthropic-413", 413, anthropic("Request exceeds the maximum size", "request_too_large"), None),
    ("anthropic-extra-usage", 429, anthropic("Extra usage is required for long context requests.", "rate_limit_error"), 200000),
    ("openai-code", 400, openai("Too much.", "context_length_exceeded"), None),
    ("openai-length", 400, openai(OPENAI_LENGTH, "context_length_exceeded"), 128000),
    ("openai-words", 400, openai("Your input exceeds the context window of this model. Please adjust your input."), None),
    ("openai-configured", 400, openai("Input tokens exceed the configured limit of 272000 tokens. You sent 300000 tokens."), 272000),
    ("proxy", 400, openai("Requested token count exceeds the model's maximum context length of 131072 tokens."), 131072),
    ("proxy-brackets", 400, openai("Input length (140000) exceeds model's maximum context length (131072)."), 131072),
    (
        "openrouter",
        400,
        openrouter("This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens"),
        32768,
    ),
    ("openrouter-input", 400, openrouter("Input length 40000 exceeds the maximum allowed input length of 32768 tokens."), 32768),
    ("vllm", 400, flat(VLLM), 4096),
    ("google", 400, google("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."), 1048576),
    ("bedrock", 400, bedrock("Input is too long for requested model."), None),
    ("xai", 400, words("This model's maximum prompt length is 131072 but the request contains 150000 tokens."), 131072),
    ("groq", 400, openai("Please reduce the length of the messages or completion."), None),
    ("mistral", 400, flat("Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length"), 32768),
    ("together", 400, openai("The input (40000 tokens) is longer than the model's context length (32768 tokens)."), 32768),
    ("perplexity", 400, openai("The total length of all messages is too long."), None),
    ("copilot", 400, openai("prompt token count of 70000 exceeds the limit of 64000"), 64000),
    ("minimax", 400, openai("invalid params, context window exceeds limit"), None),
    ("kimi", 400, openai("Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)"), 262144),
    ("glm", 400, openai("tokens in request more than max tokens allowed"), None),
    (
        "dashscope",
        400,
        openai("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]", "invalid_parameter_error"),
        129024,
    ),
    ("cerebras-400", 400, "", None),
    ("cerebras-413", 413, " \n", None),
    ("llama.cpp", 400, json.dumps({"error": LLAMA_CPP}), 8192),
    ("llama.cpp-words", 400, openai("the request exceeds the available context size, try increasing it"), None),
    ("llama.cpp-500", 500, openai("the request exceeds the available context size (8192 tokens), try increasing it"), 8192),
    ("lm-studio", 400, words("The number of tokens to keep from the initial prompt is greater than the context length."), None),
    (
        "lm-studio-number",
        400,
        words(
            "Trying to keep the first 9000 tokens when context the overflows. However, it is loaded with context length of only 4096 tokens"
        ),
        4096,
    ),
    ("ollama", 400, words("prompt too long; exceeded max context length by 812 tokens"), None),
    ("atlas", 400, words("Prompt too long: 9000 tokens exceeds max_seq_len 8192"), 8192),
    ("litellm", 400, openai("litellm.ContextWindowExceededError: it is long"), None),
    ("separators", 400, openai("prompt is too long: 213,456 tokens > 200,000 maximum"), 200000),
]


def classified(status: int, text: str) -> Failure:
    return classify_response(status, {}, text.encode(), secrets=(), now=NOW)


@pytest.mark.parametrize(("status", "text", "window"), [row[1:] for row in OVERFLOWS], ids=[row[0] for row in OVERFLOWS])
def test_every_dialect_of_a_full_window(status: int, text: str, window: int | None) -> None:
    failure = classified(status, text)
    assert failure.reason is Reason.CONTEXT_OVERFLOW
    assert failure.window == window
    assert failure.compact
    assert (failure.retryable, failure.next_route, failure.scope) == (False, False, CooldownScope.NONE)


IN_STREAMS = [
    (name, json.loads(text), window) for name, _, text, window in OVERFLOWS if text.startswith("{") and name != "anthropic-extra-usage"
]


@pytest.mark.parametrize(("error", "window"), [row[1:] for row in IN_STREAMS], ids=[row[0] for row in IN_STREAMS])
def test_every_dialect_inside_a_success(error: object, window: int | None) -> None:
    failure = classify_error(error, secrets=())
    assert (failure.reason, failure.window) == (Reason.CONTEXT_OVERFLOW, window)


@pytest.mark.parametrize("status", [401, 402, 403, 429])
def test_statuses_that_are_never_about_the_size(status: int) -> None:
    assert classified(status, openai(OPENAI_LENGTH)).reason is not Reason.CONTEXT_OVERFLOW


@pytest.mark.parametrize("status", [413, 429])
def test_a_request_larger_than_the_tokens_of_a_minute_is_too_large_whatever_its_code(status: int) -> None:
    text = "Request too large for model `m` in organization `o` on tokens per minute (TPM): Limit 6,000, Requested 9000, please reduce it."
    failure = classified(status, openai(text, "rate_limit_exceeded"))
    assert (failure.reason, failure.window, failure.compact) == (Reason.PAYLOAD_TOO_LARGE, 6000, True)


def test_a_rate_limit_of_tokens_is_no_overflow() -> None:
    text = "Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s."
    failure = classified(429, openai(text, "rate_limit_exceeded"))
    assert (failure.reason, failure.window, failure.retry_after_s) == (Reason.RATE_LIMIT, None, 2.0)


def test_an_answer_that_fits_an_empty_window_is_refused_for_the_conversation() -> None:
    text = "'max_tokens' is too large: 4000. This model's maximum context length is 8192 tokens and your request has 6000 input tokens"
    failure = classified(400, openai(text))
    assert (failure.reason, failure.window) == (Reason.CONTEXT_OVERFLOW, 8192)


@pytest.mark.parametrize("number", ["0", "999999999999999"])
def test_a_limit_beyond_reason_is_not_believed(number: str) -> None:
    assert classified(400, openai(f"maximum context length is {number} tokens")).window is None


@pytest.mark.parametrize("text", ["", "Bad Request", openai("Error"), anthropic("Error"), openai("invalid_request_error.")])
@pytest.mark.parametrize(("filled", "overflow"), [(0.1, False), (0.49, False), (0.5, True), (1.2, True)])
def test_a_refusal_that_says_nothing_is_judged_by_the_size_of_the_request(text: str, filled: float, overflow: bool) -> None:
    failure = classify_response(400, {}, text.encode(), secrets=(), now=NOW, filled=filled)
    assert failure.reason is (Reason.CONTEXT_OVERFLOW if overflow else Reason.INVALID_REQUEST)


@pytest.mark.parametrize("text", ["temperature must be <= 2", "Error: no such option"])
def test_a_refusal_that_says_something_is_believed_whatever_the_size(text: str) -> None:
    failure = classify_response(400, {}, openai(text).encode(), secrets=(), now=NOW, filled=0.9)
    assert failure.reason is Reason.INVALID_REQUEST
