"""OpenAI's protocols over the gateway's turns: chat completions, responses, models.

A call without a session is a *stateless* turn: its conversation comes with it and goes with it. A call that names one of our sessions
adds what is new in it to that session. Either way it is a turn like any other: it can be read, followed and interrupted below ``/turns``,
where the answer's ``X-Turn-Id`` and ``Location`` point to.

What the protocols have no word for is left out of them: iterations, our own tool calls, attempts. A retraction is such a thing: where an
attempt dies after text was shown, the next one goes on silently as long as it repeats that text, else the stream ends with an error.
Reasoning of later attempts is left out of a stream, since it is no part of the answer and never comes out the same.

Where our own tools run, there are several messages in one answer. Responses have an output item for each of them, streamed or not.
A streamed chat completion shows them all, with a blank line between, because what is shown cannot be taken back; one that is not
streamed has the last message only, which is the answer. Without our tools, as in every plain stateless call, both are the same text.
"""
