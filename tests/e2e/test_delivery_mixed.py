"""One conversation over providers of all three protocols: each accepts every history, and reasoning goes back to its origin only."""

import itertools
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

import pytest

from app.domain.model import ApiMode
from app.simulator.log import RecordedRequest
from app.simulator.server import Simulator
from tests.e2e.chains import CHAT, MESSAGES, MODES, RESPONSES, Link, chain, every_mode, failures, goes_on, pair, problems
from tests.e2e.harness import Client, Frame
from tests.e2e.prefix import prefix_breaks
from tests.e2e.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSES = "empty"
"""A fault that takes a call to the next route and leaves no mark on this one."""
WORK = '[[sim reasoning=4 tool=lookup args={"q":"$round $call"} parallel=2 rounds=2 preamble="Let me see." text="Done."]]'
ORDERS = list(itertools.permutations(MODES))
PATHS = {CHAT: "/v1/chat/completions", RESPONSES: "/v1/responses", MESSAGES: "/v1/messages"}


def mixed(stage: Stage, order: Iterable[ApiMode]) -> AbstractAsyncContextManager[Client]:
    """A client of a tenant whose routes speak these protocols in turn, all of one simulator, so that scripts go in order."""
    return chain(stage, *(Link(url=stage.provider.base_url, mode=mode, model=f"m-{mode.value}") for mode in order))


async def work_at(client: Client, provider: Simulator, session: str, place: int) -> list[Frame]:
    """A turn with tools whose first call is answered by the route at ``place``; later ones by the first route again."""
    provider.play(*[PASSES] * place)
    frames = await client.run(session, WORK)
    assert frames[-1].type == "turn.completed", frames[-1].data["error"]
    assert frames[-1].data["output"] == "Done."
    return frames


def of_mode(provider: Simulator, mode: ApiMode) -> list[RecordedRequest]:
    return [request for request in provider.requests if request.path == PATHS[mode]]


@pytest.mark.parametrize("order", ORDERS, ids=["-".join(mode.value.partition("_")[0] for mode in order) for order in ORDERS])
async def test_a_conversation_goes_round_all_protocols_and_back(stage: Stage, order: tuple[ApiMode, ...]) -> None:
    provider = stage.provider
    async with mixed(stage, order) as client:
        session = await client.session()
        for place in (0, 1, 2, 0, 2, 1, 0):
            frames = await work_at(client, provider, session, place)
            answered = [frame.data["route"]["provider"] for frame in frames if frame.type == "message.completed"]
            assert answered == [f"p{place + 1}", "p1", "p1"]
            assert problems(provider) == []
        await goes_on(client, session, provider)
        assert prefix_breaks(provider.requests) == []
        check_reasoning(provider)


def check_reasoning(provider: Simulator) -> None:
    """Signed thinking is in requests of Messages alone, encrypted reasoning in those of Responses, neither in chat."""
    words = {MESSAGES: b'"signature"', RESPONSES: b'"encrypted_content"'}
    for owner, word in words.items():
        for mode in MODES:
            sent = [request.number for request in of_mode(provider, mode) if word in request.raw]
            assert bool(sent) == (mode is owner), f"{word!r} in requests {sent} of {mode}"


async def test_every_route_of_a_turn_may_change_at_every_call(stage: Stage) -> None:
    """Within one turn: thinking and a call in Messages, then Responses, then chat, then the answer in Messages."""
    provider = stage.provider
    async with mixed(stage, (MESSAGES, RESPONSES, CHAT)) as client:
        session = await client.session()
        called = 'reasoning=3 tool=lookup args={"q":"a"} preamble=So'
        for _ in range(2):
            provider.play(called, PASSES, called, PASSES, PASSES, called, 'reasoning=3 text="There."')
            frames = await client.run(session)
            answered = [frame.data["route"]["api_mode"] for frame in frames if frame.type == "message.completed"]
            assert answered == [MESSAGES.value, RESPONSES.value, CHAT.value, MESSAGES.value]
            assert frames[-1].data["output"] == "There."
            assert [use["route"]["provider"] for use in frames[-1].data["routes"]] == ["p1", "p2", "p3"]
        assert problems(provider) == []
        assert prefix_breaks(provider.requests) == []
        await goes_on(client, session, provider)


@every_mode
async def test_another_model_of_the_same_provider_gets_no_reasoning_of_the_first(stage: Stage, mode: ApiMode) -> None:
    provider, url = stage.provider, stage.provider.base_url
    async with chain(stage, Link(url=url, mode=mode, model="one"), Link(url=url, mode=mode, model="two")) as client:
        session = await client.session()
        for place in (0, 1, 1, 0):
            provider.play("tool=now", *[PASSES] * place)
            frames = await client.run(session, "[[sim reasoning=4 text=Thought.]]")
            assert frames[-1].data["route"]["provider"] == f"p{place + 1}"
        assert problems(provider) == []
        assert prefix_breaks(provider.requests) == []
        await goes_on(client, session, provider)


async def test_a_model_that_insists_on_its_own_thinking_passes_a_call_of_another_one_on(stage: Stage) -> None:
    """Calls behind thinking that the first model has not signed: it refuses to go on with them, and their own model goes on."""
    provider, url = stage.provider, stage.provider.base_url
    links = [Link(url=url, mode=MESSAGES, model="one"), Link(url=url, mode=MESSAGES, model="two")]
    async with chain(stage, *links) as client:
        session = await client.session()
        frames = await work_at(client, provider, session, 1)
        assert failures(frames) == [("p1", "invalid_response"), ("p1", "unsupported"), ("p1", "unsupported")]
        assert [request.status for request in provider.requests] == [200, 200, 400, 200, 400, 200]
        assert frames[-1].data["route"]["provider"] == "p2"
        provider.clear()
        await goes_on(client, session, provider)


REFUSED_REPLAY = {
    RESPONSES: 'status=400 error_code=invalid_encrypted_content error_message="The encrypted content could not be verified."',
    MESSAGES: 'status=400 error_type=invalid_request_error error_message="messages.1.content.0: Invalid `signature` in `thinking` block"',
}


@pytest.mark.parametrize("mode", list(REFUSED_REPLAY), ids=[mode.value for mode in REFUSED_REPLAY])
async def test_reasoning_that_is_refused_is_left_out_and_the_same_route_answers(stage: Stage, mode: ApiMode) -> None:
    provider, backup = stage.provider, stage.backup
    async with pair(stage, mode) as client:
        session = await client.session()
        await client.run(session, '[[sim reasoning=4 text="Thought."]]')
        provider.play(REFUSED_REPLAY[mode])
        frames = await client.run(session, '[[sim text="Again."]]')
        assert failures(frames) == [("p1", "invalid_replay")]
        assert frames[-1].data["output"] == "Again."
        assert frames[-1].data["route"]["provider"] == "p1"
        refused, repeated = list(provider.requests)[-2:]
        word = b'"signature"' if mode is MESSAGES else b'"encrypted_content"'
        assert (word in refused.raw, word in repeated.raw) == (True, False)
        assert len(backup.requests) == 0
        await goes_on(client, session, provider)


@every_mode
async def test_every_kind_of_turn_keeps_the_prefix_of_its_route(stage: Stage, mode: ApiMode) -> None:
    """Tools, an interrupt, a cut answer, a failure, another route: what the provider has cached stays a beginning of what it is sent."""
    provider = stage.provider
    url = provider.base_url
    async with chain(stage, Link(url=url, mode=mode, model="one"), Link(url=url, mode=mode, model="two"), max_attempts=1) as client:
        session = await client.session(messages=[{"role": "assistant", "content": "Welcome."}, {"role": "user", "content": "first"}])
        for _ in range(2):
            await client.run(session, "[[sim tokens=5 reasoning=2]]")
            await client.run(
                session, '[[sim reasoning=2 calls=[{"name":"lookup","arguments":{"q":"a"}},{"name":"boom"},{"name":"nothing"}]]]'
            )
            async with client.turn(session, "[[sim reasoning=2 tokens=400 pace_ms=20]]") as stream:
                frame = await stream.until("message.delta")
                await client.http.delete(f"/turns/{frame.data['turn_id']}")
                await stream.read_to_end()
            provider.play("status=400 error_message=refused")
            await client.run(session, "refused")
            provider.play("text=half cut_after=1", "finish=length tokens=9")
            await client.run(session, "cut on both")
            provider.play("tool=lookup", PASSES)
            await client.run(session, "[[sim text=saved]]")
            await client.run(session, [{"type": "text", "text": "parts é \x00 🦀"}, {"type": "text", "text": '[[sim text="  padded\\n"]]'}])
            await client.run(session, "[[sim tool=now rounds=9]]", max_iterations=2)
        await goes_on(client, session, provider)
        assert len(provider.requests) > 25
        assert prefix_breaks(provider.requests) == []
