from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest

from app.api.openapi import event_schemas
from app.domain.events import EVENT_TYPES, FrameEncoder, TurnInterrupted
from app.domain.ids import SessionId, TurnId
from app.domain.model import MessageDelta, Usage


@pytest.fixture
async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    client.headers.pop("Authorization")
    found: dict[str, Any] = (await client.get("/openapi.json")).json()
    return found


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(child)


async def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = {node["$ref"] for node in nodes(document) if isinstance(node.get("$ref"), str)}
    mapped = {ref for node in nodes(document) if "mapping" in node for ref in node["mapping"].values()}

    for reference in references | mapped:
        target: Any = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


async def test_it_is_openapi_3_1_with_one_id_for_each_operation(document: dict[str, Any]) -> None:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]

    assert document["openapi"].startswith("3.1")
    assert document["info"]["version"] == "1.2.3"
    assert len(ids) == len(set(ids))
    assert all(operation["summary"] and operation["tags"] for operation in operations)
    assert "/sessions/{session_id}/messages" in document["paths"]


async def test_every_operation_answers_errors_with_problems_and_never_with_the_frameworks_shape(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        name = "OpenAIError" if path.startswith("/v1/") else "Problem"
        for operation in operations.values():
            assert operation["responses"]["4XX"] == {"$ref": f"#/components/responses/{name}"}
    assert "HTTPValidationError" not in str(document)
    problem = document["components"]["schemas"]["RequestProblem"]
    assert {"type", "title", "status", "code", "detail", "retryable"} <= set(problem["required"])


async def test_keys_are_needed_everywhere_but_for_health(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            names = {name for entry in operation["security"] for name in entry}
            expected = set() if path in ("/livez", "/readyz") else {"adminKey", "adminKeyHeader"}
            if path.startswith(("/sessions", "/turns", "/v1")):
                expected = {"tenantKey", "tenantKeyHeader"}
            assert names == expected
            assert names <= set(schemes)


async def test_the_docs_page_may_load_what_it_needs(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")

    assert page.status_code == 200
    assert "https://cdn.jsdelivr.net" in page.headers["content-security-policy"]


def test_the_union_tells_every_event_by_its_type() -> None:
    schemas = event_schemas()
    union = schemas["TurnEvent"]

    assert union["discriminator"]["propertyName"] == "type"
    assert set(union["discriminator"]["mapping"]) == {event.event_type for event in EVENT_TYPES}
    assert [entry["$ref"] for entry in union["oneOf"]] == list(union["discriminator"]["mapping"].values())
    assert "#/components/schemas/TurnStartedEvent" in union["discriminator"]["mapping"].values()
    assert "#/components/schemas/ReasoningDeltaEvent" in union["discriminator"]["mapping"].values()


@pytest.mark.parametrize(
    "event",
    [
        MessageDelta(attempt=1, text="hi"),
        TurnInterrupted(
            session_id=SessionId("sess_1"),
            reason="requested",
            output="",
            iterations=1,
            attempts=1,
            usage=Usage(),
            cost_usd=None,
            route=None,
        ),
    ],
    ids=["delta", "terminal"],
)
def test_a_frames_data_fits_its_schema(event: MessageDelta | TurnInterrupted) -> None:
    frame = FrameEncoder(TurnId("turn_1")).frame(7, event)
    data = msgspec.json.decode(frame.partition(b"data: ")[2])
    schema = {"$ref": "#/components/schemas/TurnEvent", "components": {"schemas": event_schemas()}}

    jsonschema.Draft202012Validator(schema).validate(data)
    data["seq"] = "seven"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(data)
