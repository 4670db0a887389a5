from typing import Any

import httpx
import pytest

from app.domain.ids import SessionId, TurnId
from app.domain.model import Usage
from app.domain.summaries import Summary
from tests.unit.api.conftest import OTHER_KEY, Gateway
from tests.unit.api.test_sessions import UNKNOWN, create


def summary_of(session_id: str, number: int, *, active: bool = False) -> Summary:
    return Summary(
        id=f"sum_{number:026d}",
        session_id=SessionId(session_id),
        turn_id=TurnId("turn_1") if number else None,
        active=active,
        body=f"# Summary {number}",
        first_seq=1,
        last_seq=10 * number,
        tokens_before=9_000,
        tokens_after=900,
        usage=Usage(input_tokens=8_000, output_tokens=300),
        cost_usd=0.01,
        reason="gateway",
        created_at_ms=1_800_000_000_000,
    )


async def page(client: httpx.AsyncClient, session_id: str, **query: Any) -> dict[str, Any]:
    response = await client.get(f"/sessions/{session_id}/summaries", params=query)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_summaries_come_newest_first_in_pages(gateway: Gateway, client: httpx.AsyncClient) -> None:
    session_id = (await create(client))["id"]
    gateway.summaries.rows += [summary_of(session_id, number, active=number == 3) for number in (1, 2, 3)]

    first = await page(client, session_id, limit=2)
    second = await page(client, session_id, limit=2, cursor=first["next_cursor"])

    assert [(each["content"], each["active"]) for each in first["data"]] == [("# Summary 3", True), ("# Summary 2", False)]
    assert [each["content"] for each in second["data"]] == ["# Summary 1"]
    assert (first["has_more"], second["has_more"], second["next_cursor"]) == (True, False, None)


async def test_a_summary_says_what_it_stands_for_and_what_it_took(gateway: Gateway, client: httpx.AsyncClient) -> None:
    session_id = (await create(client))["id"]
    gateway.summaries.rows.append(summary_of(session_id, 1))
    assert (await page(client, session_id))["data"] == [
        {
            "id": "sum_" + "0" * 25 + "1",
            "session_id": session_id,
            "turn_id": "turn_1",
            "active": False,
            "content": "# Summary 1",
            "first_seq": 1,
            "last_seq": 10,
            "tokens_before": 9_000,
            "tokens_after": 900,
            "usage": {
                "input_tokens": 8_000,
                "output_tokens": 300,
                "cached_input_tokens": 0,
                "cache_write_tokens": 0,
                "reasoning_tokens": 0,
            },
            "cost_usd": 0.01,
            "reason": "gateway",
            "created_at": "2027-01-15T08:00:00.000Z",
        }
    ]


async def test_a_session_without_summaries_has_an_empty_page(client: httpx.AsyncClient) -> None:
    assert await page(client, (await create(client))["id"]) == {"data": [], "has_more": False, "next_cursor": None}


async def test_unknown_and_foreign_sessions_are_not_found(gateway: Gateway, client: httpx.AsyncClient) -> None:
    session_id = (await create(client))["id"]
    async with gateway.client(OTHER_KEY) as other:
        foreign = await other.get(f"/sessions/{session_id}/summaries")
    for response in (foreign, await client.get(f"/sessions/{UNKNOWN}/summaries"), await client.get("/sessions/nonsense/summaries")):
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("cursor", ["x", "bXNnXzE"], ids=["no base64", "of something else"])
async def test_a_bad_cursor_is_refused(client: httpx.AsyncClient, cursor: str) -> None:
    response = await client.get(f"/sessions/{(await create(client))['id']}/summaries", params={"cursor": cursor})
    assert response.status_code == 422
