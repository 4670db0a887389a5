"""A request that a provider refuses for what is in it must not be sent again with every turn to come."""

import pytest

from app.simulator.server import Simulator
from tests.e2e.harness import Client


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('[[sim status=400 body={"error":{"message":"invalid image"}}]]', "provider_unavailable"),
        ('[[sim status=400 body={"error":{"code":"context_length_exceeded"}}]]', "context_exhausted"),
        ('[[sim status=400 body={"error":{"code":"content_filter"}}]]', "content_filtered"),
        ("[[sim status=413]]", "context_exhausted"),
    ],
    ids=["invalid", "too long", "filtered", "too large"],
)
async def test_what_a_provider_refuses_leaves_the_context_and_stays_in_the_transcript(
    client: Client, provider: Simulator, script: str, reason: str
) -> None:
    session = await client.session()
    await client.run(session, "first")
    refused = await client.run(session, f"poison {script}")
    assert (refused[-1].type, refused[-1].data["reason"]) == ("turn.failed", reason)
    assert (await client.run(session, "third"))[-1].type == "turn.completed"
    last = provider.requests[-1]
    assert "poison" not in str(last.body)
    assert last.problems == ()
    transcript = await client.messages(session)
    assert [(message["role"], message["archived"]) for message in transcript] == [
        ("user", False),
        ("assistant", False),
        ("user", True),
        ("user", False),
        ("assistant", False),
    ]


async def test_what_fails_for_other_reasons_stays_in_the_context(client: Client, provider: Simulator) -> None:
    session = await client.session()
    failed = await client.run(session, "remember this [[sim status=401]]")
    assert failed[-1].type == "turn.failed"
    assert (await client.run(session, "second"))[-1].type == "turn.completed"
    assert "remember this" in str(provider.requests[-1].body)
