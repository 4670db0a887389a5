"""Results of tool calls: given to a turn that waits (client tools, answers, approvals), and read as a whole."""

from functools import partial
from typing import Annotated, Self

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, Field, model_validator

from app.api.body import read_body
from app.api.openapi import EVENT_STREAM_RESPONSES, json_answer, json_request
from app.api.routes.sessions import checked_idempotency_key
from app.api.schemas import RequestBody, turn_id_of
from app.api.services import services_of
from app.api.sse import event_stream
from app.api.turn_answers import Caller, IdempotencyKey, TurnBody, fingerprint, finished, json_response, turn_body, wants_json
from app.domain.errors import NotFoundError
from app.domain.messages import clean_text
from app.domain.turns import OnDisconnect
from app.turns.answers import CallResult, Decision

router = APIRouter(tags=["turns"])

MAX_RESULTS = 128
MAX_OUTPUT = 100_000
"""Characters of one result: as much as a model is shown of any."""
MAX_REASON = 2_000

Output = Annotated[str, Field(max_length=MAX_OUTPUT), AfterValidator(clean_text)]


class ToolResult(RequestBody):
    """The answer to one call: exactly one of `output`, `error` and `decision`."""

    tool_call_id: Annotated[str, Field(min_length=1, max_length=512)]
    output: Output | None = Field(None, description="What the client's tool returned, or the answer to a question.")
    error: Output | None = Field(None, description="Why there is no output; the model reads it as a failure.")
    decision: Annotated[Decision, Field(strict=False)] | None = Field(None, description="For a call that waits for an approval.")
    reason: Annotated[str, Field(max_length=MAX_REASON), AfterValidator(clean_text)] | None = Field(
        None, description="Why the call was denied; the model is told."
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if sum(value is not None for value in (self.output, self.error, self.decision)) != 1:
            msg = "exactly one of output, error and decision is needed"
            raise ValueError(msg)
        if self.reason is not None and self.decision is None:
            msg = "a reason goes with a decision"
            raise ValueError(msg)
        return self


class ToolResultsCreate(RequestBody):
    """Answers to calls that a turn waits for; some of them or all."""

    results: Annotated[list[ToolResult], Field(min_length=1, max_length=MAX_RESULTS)]
    background: bool = Field(False, description="Answer 202 at once when the turn goes on; read it later.")


MODELS = (ToolResultsCreate,)

_RESPONSES = (
    EVENT_STREAM_RESPONSES
    | {
        200: {
            "description": "The rest of the turn's stream. JSON: the turn, as it waits for the answers that are missing, or with "
            "`Accept: application/json` when it has ended.",
            "content": EVENT_STREAM_RESPONSES[200]["content"] | json_answer(TurnBody, "")[200]["content"],
        }
    }
    | json_answer(TurnBody, "`background`: the turn goes on.", status=202)
)


@router.post(
    "/turns/{turn_id}/tool_results",
    summary="Answer a turn that waits",
    response_class=Response,
    responses=_RESPONSES,
    openapi_extra=json_request(ToolResultsCreate),
)
async def answer_turn(request: Request, caller: Caller, turn_id: str, *, idempotency_key: IdempotencyKey = None) -> Response:
    """Answer calls that a turn waits for. When none is missing the turn goes on, and this is the rest of its stream.

    409 `turn_not_waiting` when the turn does not wait; 422 for an id that it does not wait for, or an answer of the wrong kind: then
    nothing is taken. `on_disconnect` of the turn holds for this connection too.
    """
    known, services = turn_id_of(turn_id), services_of(request)
    body = await read_body(request, ToolResultsCreate)
    key = checked_idempotency_key(idempotency_key)
    results = [CallResult(**result.model_dump()) for result in body.results]
    answered = await services.turns.answer(
        caller.tenant.id, known, results, idempotency_key=key, fingerprint=fingerprint(body) if key else b""
    )
    headers = {"Location": f"/turns/{known}"} | ({"Idempotency-Replayed": "true"} if answered.replayed else {})
    if not answered.complete:
        return json_response(turn_body(answered.view), 200, headers)
    if body.background:
        return json_response(turn_body(answered.view), 202, headers)
    follows = not answered.replayed and answered.view.request.on_disconnect is OnDisconnect.CANCEL
    left = partial(services.turns.client_left, caller.tenant.id, known) if follows else None
    frames = services.turns.follow_answered(known, answered)
    if wants_json(request):
        return await finished(request, frames, caller, headers=headers, left=left, turn_id=known)
    return event_stream(frames, heartbeat_s=services.heartbeat_s, headers=headers, left=left)


@router.get(
    "/turns/{turn_id}/tool_results/{tool_call_id:path}",
    summary="Read the whole result of a tool call",
    response_class=Response,
    responses={200: {"description": "The result.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def read_tool_result(
    request: Request,
    caller: Caller,
    turn_id: str,
    tool_call_id: str,
    *,
    seq: Annotated[int | None, Query(ge=0, le=2**53, description="The place of the result, where an id came again in the turn.")] = None,
) -> Response:
    """What a tool gave as a result, up to 4,000,000 characters of it: also where the model and the events got a cut one.

    What was cut for the model is kept for as long as the turn's deltas; after that this is the cut one.
    """
    output = await services_of(request).calls.output(caller.tenant.id, turn_id_of(turn_id), clean_text(tool_call_id), seq)
    if output is None:
        raise NotFoundError
    # Tools give anything: a browser must neither guess what it is nor run it.
    headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox"}
    return Response(output, media_type="text/plain; charset=utf-8", headers=headers)
