r"""A scripted model provider over real HTTP, for the demo, tests and benchmarks.

It speaks OpenAI Chat Completions at `POST /v1/chat/completions`, OpenAI Responses at
`POST /v1/responses` (it stores none) and Anthropic Messages at `POST /v1/messages`, streamed or not.
It is no model: what it answers is scripted, request by request.

Which script a request gets
===========================

The first of these that applies:

1. the queue: scripts enqueued with `Simulator.play(...)` or `POST /_simulator/scripts`; the n-th
   request gets the n-th. A queued script with tool calls makes them whatever the history says.
2. a directive in the newest user message: `[[sim key=value key=value ...]]`. When there are several,
   the last one counts.
3. the model name: directives after the first colon, such as `sim:tokens=200,pace_ms=20` (the part
   before the colon is free; `llama:8b` holds no directive). `sim-echo` repeats the user's text,
   `sim-text` answers with 50 tokens.
4. the default: a short answer that says that it is the simulator, with the user's text quoted.

Grammar of directives
=====================

Words separated by blanks or commas: `key=value` or a lone `flag`. A value is a bare word, a JSON string
in double quotes (so that it may hold blanks, commas and brackets), a JSON object or a JSON list. An
unknown key, a bad value or a second fault is answered with 400 and a message that starts with `simulator:`.

    [[sim tokens=40 pace_ms=20 first_ms=300]]
    [[sim tool=get_time args={"zone":"UTC"} rounds=2 text="It is late."]]
    [[sim calls=[{"name":"lookup","arguments":{"q":"a"}},{"name":"lookup","arguments":{"q":"b"}}]]]
    [[sim status=429 retry_after=1 times=2]]

A *token* below is one delta of the stream: a word of text or reasoning, or a piece of a tool call.

What is said
------------

`tokens=N`            a text of N tokens
`text="..."`          this text
`reasoning=N`         N tokens of reasoning first: `reasoning_content`, an item with summary and encrypted content in
                      Responses, or a signed thinking block in Messages
`refusal="..."`       a refusal instead of a text
`tool=NAME`           a tool call; the final text comes after its results
`args={...}`          its arguments (default `{}`); a string goes out as it is, so it can be broken JSON;
                      `$round` and `$call` inside become the number of the round and of the call
`parallel=N`          N such calls in one round
`calls=[...]`         a list of different calls instead: `{"name", "arguments"?, "id"?}`
`rounds=N`            N rounds of calls (default 1), counted from the history after the newest user message;
                      a request without tools, or with `tool_choice: "none"`, gets the final text at once
`preamble="..."`      text before the calls of a round
`chunk_args=N`        arguments in N pieces
`finish=REASON`       stop, length, content_filter or tool_calls, whatever was said; with length or
                      content_filter the last call's arguments are cut in half
`usage=IN/OUT`        tokens reported (default: bytes of the request / 4, and the tokens said)

When
----

`headers_ms=N`        wait before the status line (default 0)
`first_ms=N`          then wait before the first token
`pace_ms=N`           wait between tokens; without it all leave at once
                      An answer that is not streamed comes whole, after the sum of these.

Faults (one per script)
-----------------------

`times=F`             only the first F requests with these very words (in message or model name) see the fault
`status=N`            an error status with the provider's error object; beside it `retry_after=..`,
                      `header.NAME=VALUE`, `body=...` (text or JSON), `error_code=.. error_message=.. error_type=..`
`html_status=N`       an HTML error page, as proxies send
`json_error`          status 200 with a JSON error object as its body (`error_...` as above)
`hangup`              the connection is closed before any byte
`silent`              the request is accepted and never answered
`empty`               a proper stream without any content
`stall_after=K`       K tokens, then silence on an open connection (K = 0: not even the role)
`comments_after=K`    K tokens, then only `: keep-alive` comments, one each `every_ms=N` (default 1000)
`empty_deltas_after=K`  K tokens, then only empty deltas, one each `every_ms=N`
`cut_after=K`         K tokens, then the body ends properly, without finish_reason and `[DONE]`
`drop_after=K`        K tokens, then the connection is closed in the middle of a chunk
`reset_after=K`       the same with a TCP reset
`garbage_after=K`     K tokens, a data line that is no JSON, then the rest
`error_after=K`       K tokens, then an error object in the stream (`error_...` as above) and the end
`no_done`             finish_reason, but no `[DONE]`; in Messages stop_reason, but no `message_stop`;
                      no fault in Responses, which has no such mark
`no_finish`           `[DONE]`, but no finish_reason; in Messages `message_stop`, but no stop_reason;
                      in Responses `[DONE]` in place of `response.completed`

In an answer that is not streamed the faults after K tokens show half of the body (`stall`, `comments`,
`empty_deltas`, `drop`, `reset`), half of the JSON (`cut`, `garbage`) or the error object alone (`error`).

Strict mode
===========

`Simulator(strict=True)`, or `[[sim strict]]` for one request, answers 400 to what real providers refuse:
calls without results, results without calls, illegal names, broken arguments and so on (module
`chat_rules`). `picky` adds what only some refuse: two user or assistant messages in a row, an empty
assistant message. What was found is in the log as `problems`. The script is used up all the same.

For Responses (module `responses_rules`) that is also a parameter of Chat Completions, whatever would have to be stored,
and reasoning that nothing follows or that was not given out by a simulator under this very model name (400 with the code
`invalid_encrypted_content`); `picky` adds ids of items, an output limit below 16, and words between a call and its output.

For Messages (module `messages_rules`) that is also thinking that is not signed, or not by this very model for these
very words, blank texts, more than four cache markers and the like; `picky` adds thinking that is missing before
calls that came behind it, a conversation that ends with the assistant, and trailing blanks there.

What is called differently: in Responses `finish` length and content_filter make the response incomplete, and the error
within a stream has no type. In Messages `finish` length, content_filter and tool_calls are the stop reasons max_tokens,
refusal and tool_use; `refusal` is what explains that stop reason, and no text; errors have no code.

Over HTTP
=========

`GET /_simulator/requests?after=N`   `{"requests": [...]}`: number, received_at and ended_at (monotonic seconds),
                                     method, path, headers, body, problems, status, ending (completed, client_closed,
                                     fault, stopped, or null while it goes on)
`DELETE /_simulator/requests`        forgets them, the queue, and how often faults were shown
`POST /_simulator/scripts`           `{"scripts": [...]}`; a script is a string of directives, an object with the
                                     same keys, or a raw body:
                                     `{"raw": ["data: x\r\n\r\n", {"base64": "4pyT", "pause_ms": 50}], "status"?, "content_type"?,
                                     "headers"?, "end"?: "complete" | "close" | "reset" | "hold"}`, one HTTP chunk per piece
`GET /v1/models`, `GET /livez`

The log holds requests as they came, credentials included: do not send it real ones.
"""

from app.simulator.log import RecordedRequest, RequestEnd
from app.simulator.script import RawEnd, RawPiece, RawScript, Script, ScriptedCall, ScriptError, raw_script
from app.simulator.server import Simulator, run_simulator

__all__ = [
    "RawEnd",
    "RawPiece",
    "RawScript",
    "RecordedRequest",
    "RequestEnd",
    "Script",
    "ScriptError",
    "ScriptedCall",
    "Simulator",
    "raw_script",
    "run_simulator",
]
