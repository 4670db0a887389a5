"""How far a failure reaches: a request, a model, an account, a tenant; and who pays for what."""

import pytest

from app.domain.model import ApiMode
from app.domain.tenants import Prices
from tests.e2e.chains import Link, answered_by, chain, every_mode, failures, goes_on
from tests.e2e.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACCOUNTS = {
    "code": "status=429 error_code=insufficient_quota",
    "words": 'status=429 body={"error":{"message":"You exceeded your current quota, please check your plan and billing details."}}',
    "balance": 'status=400 error_message="Your credit balance is too low to access the API"',
    "402": 'status=402 error_message="insufficient credits"',
    "type": 'status=429 body={"error":{"type":"usage_limit_reached","message":"The usage limit has been reached"}}',
    "inside 200": 'json_error error_code=insufficient_quota error_message="no money"',
}


@every_mode
@pytest.mark.parametrize("script", ACCOUNTS.values(), ids=ACCOUNTS)
async def test_an_empty_wallet_is_asked_once_and_benches_all_its_models(stage: Stage, mode: ApiMode, script: str) -> None:
    if mode is ApiMode.ANTHROPIC_MESSAGES:  # its errors have a type and no code
        script = script.replace("error_code", "error_type")
    provider, backup = stage.provider, stage.backup
    key = {"api_key": "sk-one-account-0123456789"}
    links = [
        Link(url=provider.base_url, mode=mode, model="m1", provider=key),
        Link(url=provider.base_url, mode=mode, model="m2", provider=key),
        Link(url=backup.base_url, mode=mode),
    ]
    async with chain(stage, *links) as client, chain(stage, links[0], links[2]) as other_tenant:
        provider.play(script)
        session = await client.session()
        frames = await client.run(session, '[[sim text="Said."]]')
        assert failures(frames) == [("p1", "billing")]
        assert frames[-1].data["route"]["provider"] == "p3"
        assert await answered_by(client, await client.session(model="m2")) == "p3"
        assert len(provider.requests) == 1, "an empty account is asked once"
        assert await answered_by(other_tenant) == "p1", "another tenant's health is its own, even behind the same words"
        await goes_on(client, session, provider, backup)


@every_mode
async def test_a_rate_limit_for_speed_is_waited_for_within_patience(stage: Stage, mode: ApiMode) -> None:
    links = [Link(url=simulator.base_url, mode=mode) for simulator in (stage.provider, stage.backup)]
    code = "error_type=rate_limit_error" if mode is ApiMode.ANTHROPIC_MESSAGES else "error_code=rate_limit_exceeded"
    async with chain(stage, *links) as client:
        wait_s = 1.0 if mode is ApiMode.CHAT_COMPLETIONS else 0.25
        named = "retry_after=1" if wait_s == 1.0 else "header.retry-after-ms=250"
        stage.provider.play(f"status=429 {code} {named}")
        assert await answered_by(client) == "p1"
        first, second = stage.provider.requests
        assert second.received_at - first.received_at >= wait_s
        assert len(stage.backup.requests) == 0


@every_mode
async def test_nobody_sleeps_a_day_in_a_turn_or_is_locked_out_for_one(stage: Stage, mode: ApiMode) -> None:
    provider, backup = stage.provider, stage.backup
    async with chain(stage, *(Link(url=simulator.base_url, mode=mode) for simulator in (provider, backup))) as client:
        provider.play("status=429 retry_after=86400")
        session = await client.session()
        assert await answered_by(client, session) == "p2"
        assert await answered_by(client, session) == "p2"
        assert len(provider.requests) == 1
    async with chain(stage, Link(url=provider.base_url, mode=mode)) as alone:
        provider.clear()
        provider.play("status=429 retry_after=86400")
        session = await alone.session()
        for number in range(2):
            frames = await alone.run(session)
            assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.failed", "provider_unavailable"), number
            assert 3_500 <= frames[-1].data["error"]["retry_after_s"] <= 3_600
        assert len(provider.requests) == 1, "what the provider forbade is not tried"


@every_mode
async def test_usage_and_cost_are_those_of_the_routes_that_had_them(stage: Stage, mode: ApiMode) -> None:
    provider, backup = stage.provider, stage.backup
    links = [
        Link(url=provider.base_url, mode=mode, model="dear", route={"prices": Prices(input=100.0, cached_input=100.0, output=1000.0)}),
        Link(url=backup.base_url, mode=mode, model="cheap", route={"prices": Prices(input=1.0, cached_input=1.0, output=10.0)}),
    ]
    async with chain(stage, *links) as client:
        provider.play('tool=lookup args={"q":"a"} usage=100/10', "text=half usage=50/5 finish=stop no_finish")
        backup.play('text="Whole." usage=200/20')
        session = await client.session()
        frames = await client.run(session)
        end = frames[-1].data
        assert end["output"] == "Whole."
        assert end["route"] == {"provider": "p2", "model": "cheap", "api_mode": mode.value}
        dear, cheap = end["routes"]
        assert (dear["attempts"], dear["failed"], cheap["attempts"], cheap["failed"]) == (2, 1, 1, 0)
        spent = dear["usage"]["input_tokens"]
        assert spent > 100, "what a broken answer used counts as far as the provider said, else by estimate"
        assert dear["cost_usd"] == pytest.approx((spent * 100 + dear["usage"]["output_tokens"] * 1000) / 1e6)
        assert (cheap["usage"]["input_tokens"], cheap["usage"]["output_tokens"]) == (200, 20)
        assert cheap["cost_usd"] == pytest.approx((200 * 1 + 20 * 10) / 1e6)
        assert end["cost_usd"] == pytest.approx(dear["cost_usd"] + cheap["cost_usd"])
        assert end["usage"]["input_tokens"] == spent + 200
        turn = await client.get(end["turn_id"])
        assert (turn["routes"], turn["usage"], turn["cost_usd"]) == (end["routes"], end["usage"], end["cost_usd"])
        await goes_on(client, session, provider, backup)
