import json
from typing import Any

import httpx
import pytest

from app.domain.ids import MessageId, SessionId, TurnId
from app.domain.messages import Message, MessageKind, Role
from tests.unit.api.conftest import OTHER_KEY, Gateway

UNKNOWN = "sess_" + "0" * 26
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}


async def create(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/sessions", json=body)
    assert response.status_code == 201, response.text
    created: dict[str, Any] = response.json()
    return created


async def transcript(client: httpx.AsyncClient, session: dict[str, Any], **query: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = (await client.get(f"/sessions/{session['id']}/messages", params=query)).json()["data"]
    return messages


IMAGE = "data:image/png;base64,AA=="


async def test_an_empty_body_makes_a_session_with_the_tenants_defaults(gateway: Gateway, client: httpx.AsyncClient) -> None:
    response = await client.post("/sessions")

    session = response.json()
    assert response.status_code == 201
    assert response.headers["location"] == f"/sessions/{session['id']}"
    assert session["id"].startswith("sess_")
    assert session["system_prompt"] == "You are a helpful assistant."
    assert session["model"] is None
    assert session["toolsets"] == ["core", "notes", "time"]
    assert session["metadata"] == {}
    assert session["status"] == "idle"
    assert session["active_turn_id"] is None
    assert session["created_at"].endswith("Z")
    tools = gateway.sessions.stored(SessionId(session["id"])).tools
    assert [tool["name"] for tool in json.loads(tools)] == ["add_note", "get_time", "memory", "write_note"]
    assert tools == json.dumps(json.loads(tools), sort_keys=True, separators=(",", ":")).encode()


async def test_a_session_keeps_what_it_was_given(client: httpx.AsyncClient) -> None:
    given = {
        "system_prompt": "Be brief.",
        "model": "m-other",
        "toolsets": ["time"],
        "user": "ada",
        "keep_interrupted_text": True,
        "metadata": {"team": "blue"},
    }
    session = await create(client, **given)

    read = (await client.get(f"/sessions/{session['id']}")).json()

    assert read == session
    assert {name: read[name] for name in given} == given


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"unknown": 1}, "/unknown"),
        ({"system_prompt": 5}, "/system_prompt"),
        ({"system_prompt": "ä" * 140_000}, "/system_prompt"),
        ({"model": "m-nowhere"}, "/model"),
        ({"toolsets": ["nothing"]}, "/toolsets"),
        ({"toolsets": "time"}, "/toolsets"),
        ({"user": ""}, "/user"),
        ({"keep_interrupted_text": "yes"}, "/keep_interrupted_text"),
        ({"metadata": {"a": 1}}, "/metadata/a"),
        ({"metadata": {"a": "x" * 513}}, "/metadata/a"),
        ({"metadata": {f"k{n}": "" for n in range(17)}}, "/metadata"),
        ({"messages": [{"role": "function", "content": "x"}]}, "/messages/0/role"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_bad_body_is_422_with_the_place_and_without_the_input(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    response = await client.post("/sessions", json=body)

    problem = response.json()
    assert response.status_code == 422
    assert problem["code"] == "invalid_request"
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert "input" not in problem["errors"][0]
    assert "nowhere" not in response.text


async def test_nul_and_half_characters_are_replaced(client: httpx.AsyncClient) -> None:
    body = b'{"system_prompt": "a\\u0000b \\ud83e", "metadata": {"k\\u0000": "\\ud83e\\udd80"}, "messages": [MESSAGE]}'
    raw = body.replace(b"MESSAGE", b'{"role": "user", "content": "x\\u0000"}')

    response = await client.post("/sessions", content=raw)

    session = response.json()
    assert response.status_code == 201
    assert session["system_prompt"] == "a\ufffdb \ufffd"
    assert session["metadata"] == {"k\ufffd": "\U0001f980"}
    assert (await transcript(client, session))[0]["content"] == "x\ufffd"


async def test_an_idempotency_key_gives_the_same_session_again(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "one"}
    first = await client.post("/sessions", json={"user": "ada"}, headers=headers)
    again = await client.post("/sessions", content='{ "user" : "ada" }', headers=headers)
    other = await client.post("/sessions", json={"user": "eve"}, headers=headers)

    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first.json()
    assert other.status_code == 422
    assert other.json()["code"] == "idempotency_mismatch"


async def test_an_idempotency_key_is_a_tenants_own(gateway: Gateway, client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "one"}
    first = await client.post("/sessions", headers=headers)
    async with gateway.client(OTHER_KEY) as foreign:
        second = await foreign.post("/sessions", headers=headers)

    assert second.json()["id"] != first.json()["id"]


@pytest.mark.parametrize("key", ["", "a b", "x" * 256], ids=["empty", "space", "long"])
async def test_an_unusable_idempotency_key_is_422(client: httpx.AsyncClient, key: str) -> None:
    response = await client.post("/sessions", headers={"Idempotency-Key": key})

    assert response.status_code == 422


async def test_listing_pages_newest_first_without_gap_or_double(client: httpx.AsyncClient) -> None:
    made = [(await create(client))["id"] for _ in range(7)]

    seen: list[str] = []
    cursor: str | None = None
    pages = 0
    while True:
        query = {"limit": "3"} | ({"cursor": cursor} if cursor else {})
        page = (await client.get("/sessions", params=query)).json()
        seen += [session["id"] for session in page["data"]]
        pages += 1
        cursor = page["next_cursor"]
        if not page["has_more"]:
            break

    assert seen == sorted(made, reverse=True)
    assert pages == 3
    assert cursor is None


async def test_listing_filters_by_user(client: httpx.AsyncClient) -> None:
    ada = await create(client, user="ada")
    await create(client, user="eve")

    page = (await client.get("/sessions", params={"user": "ada"})).json()

    assert [session["id"] for session in page["data"]] == [ada["id"]]


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "cursor=!!", "cursor=c2Vzc18x", "after=%00"])
async def test_a_bad_page_parameter_is_422(client: httpx.AsyncClient, query: str) -> None:
    response = await client.get(f"/sessions?{query}")

    assert response.status_code == 422
    assert response.json()["code"] == "invalid_request"


async def test_patch_changes_what_is_given_and_null_restores_the_default(gateway: Gateway, client: httpx.AsyncClient) -> None:
    session = await create(client, system_prompt="One.", model="m-other", user="ada", metadata={"a": "b"})
    url = f"/sessions/{session['id']}"

    changed = (await client.patch(url, json={"toolsets": ["time"], "user": "eve"})).json()
    restored = (
        await client.patch(url, json={"system_prompt": None, "model": None, "user": None, "metadata": None, "toolsets": None})
    ).json()

    assert changed == session | {"toolsets": ["time"], "user": "eve"}
    assert restored["system_prompt"] == "You are a helpful assistant."
    assert (restored["model"], restored["user"], restored["metadata"]) == (None, None, {})
    assert restored["toolsets"] == ["core", "notes", "time"]
    assert b"add_note" in gateway.sessions.stored(SessionId(session["id"])).tools


async def test_a_deleted_session_is_gone(client: httpx.AsyncClient) -> None:
    session = await create(client)
    url = f"/sessions/{session['id']}"

    assert (await client.delete(url)).json() == {"id": session["id"], "deleted": True}
    assert (await client.get(url)).status_code == 404
    assert (await client.delete(url)).status_code == 404


async def test_deleting_a_busy_session_is_409_with_the_turns_address(gateway: Gateway, client: httpx.AsyncClient) -> None:
    session = await create(client)
    turn = TurnId("turn_" + "1" * 26)
    gateway.sessions.running[SessionId(session["id"])] = turn

    response = await client.delete(f"/sessions/{session['id']}")

    assert response.status_code == 409
    assert response.headers["location"] == f"/turns/{turn}"
    assert response.json()["code"] == "turn_in_progress"
    assert response.json()["turn_id"] == turn
    assert response.json()["retryable"] is True
    assert (await client.get(f"/sessions/{session['id']}")).json()["status"] == "running"


REQUESTS = [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/messages"), ("GET", "/messages?view=context")]


@pytest.mark.parametrize(("method", "suffix"), REQUESTS, ids=[f"{method}{suffix}" for method, suffix in REQUESTS])
async def test_a_foreign_session_looks_like_an_unknown_one(gateway: Gateway, client: httpx.AsyncClient, method: str, suffix: str) -> None:
    session = await create(client, user="ada")
    headers = {"X-Request-Id": "same"}
    body = {"user": "eve"} if method == "PATCH" else None

    async with gateway.client(OTHER_KEY) as foreign:
        theirs = await foreign.request(method, f"/sessions/{session['id']}{suffix}", json=body, headers=headers)
        unknown = await foreign.request(method, f"/sessions/{UNKNOWN}{suffix}", json=body, headers=headers)
        malformed = await foreign.request(method, f"/sessions/x%00y{suffix}", json=body, headers=headers)
        listed = (await foreign.get("/sessions")).json()["data"]

    assert theirs.status_code == unknown.status_code == malformed.status_code == 404
    assert theirs.content == unknown.content == malformed.content
    assert listed == []
    assert (await client.get(f"/sessions/{session['id']}")).json() == session


@pytest.mark.parametrize(("method", "suffix"), [*REQUESTS, ("POST", "")], ids=str)
async def test_nothing_works_without_a_key(gateway: Gateway, method: str, suffix: str) -> None:
    path = "/sessions" if method == "POST" else f"/sessions/{UNKNOWN}{suffix}"
    async with gateway.client(key=None) as http:
        response = await http.request(method, path, content=b"{")

    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert response.json()["code"] == "unauthorized"


async def test_the_transcript_pages_oldest_first(client: httpx.AsyncClient) -> None:
    turns = [{"role": role, "content": f"{role} {n}"} for n in range(3) for role in ("user", "assistant")]
    session = await create(client, messages=turns)

    first = (await client.get(f"/sessions/{session['id']}/messages", params={"limit": 4})).json()
    second = (await client.get(f"/sessions/{session['id']}/messages", params={"limit": 4, "after": first["next_cursor"]})).json()

    messages = first["data"] + second["data"]
    assert [{"role": message["role"], "content": message["content"]} for message in messages] == turns
    assert [message["seq"] for message in messages] == [1, 2, 3, 4, 5, 6]
    assert (first["has_more"], second["has_more"], second["next_cursor"]) == (True, False, None)
    assert set(messages[0]) == {"id", "seq", "turn_id", "role", "content", "archived", "created_at"}
    assert messages[0]["id"].startswith("msg_")


async def test_the_context_view_shows_what_the_model_is_shown(gateway: Gateway, client: httpx.AsyncClient) -> None:
    session = await create(client, messages=[{"role": "user", "content": "hi"}])
    session_id = SessionId(session["id"])
    gateway.sessions.append(session_id, MessageId("msg_note"), Message(role=Role.ASSISTANT, content="cut off", kind=MessageKind.NOTE))
    gateway.sessions.append(session_id, MessageId("msg_old"), Message(role=Role.USER, content="old"), archived=True)
    gateway.sessions.append(session_id, MessageId("msg_a"), Message(role=Role.USER, content="one"))
    gateway.sessions.append(session_id, MessageId("msg_b"), Message(role=Role.USER, content="two"))

    said = await transcript(client, session)
    shown = await transcript(client, session, view="context")

    assert [(message["content"], message["archived"]) for message in said] == [("hi", False), ("old", True), ("one", False), ("two", False)]
    assert [(message["seq"], message["content"]) for message in shown] == [(1, "hi"), (2, "cut off"), (None, "one\n\ntwo")]
    assert shown[1]["kind"] == "note"


async def test_an_imported_history_reads_back_as_openai_writes_it(client: httpx.AsyncClient) -> None:
    session = await create(
        client,
        messages=[
            {"role": "system", "content": "Be kind."},
            {"role": "developer", "content": [{"type": "text", "text": "Be quick."}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "time?"}, {"type": "image_url", "image_url": {"url": IMAGE}}],
            },
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
            {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
            {"role": "assistant", "content": "It is noon."},
        ],
    )

    messages = await transcript(client, session)

    assert session["system_prompt"] == "Be kind.\n\nBe quick."
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[0]["content"][1] == {"type": "image_url", "image_url": {"url": IMAGE}}
    assert messages[1]["tool_calls"] == [CALL]
    assert messages[2]["tool_call_id"] == "call_1"


async def test_unpaired_calls_and_results_are_repaired(client: httpx.AsyncClient) -> None:
    session = await create(
        client,
        messages=[
            {"role": "user", "content": "time?"},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_9", "content": "lost"},
            {"role": "user", "content": "hello?"},
        ],
    )

    messages = await transcript(client, session)

    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[2]["tool_call_id"] == "call_1"
    assert messages[2]["is_error"] is True


async def test_a_given_prompt_wins_over_the_imported_one(client: httpx.AsyncClient) -> None:
    session = await create(client, system_prompt="Mine.", messages=[{"role": "system", "content": "Theirs."}])

    assert session["system_prompt"] == "Mine."
