"""Text that Postgres or UTF-8 refuse, from everybody who can send text: the turn completes, U+FFFD stands in its place."""

import json

from app.simulator.script import RawPiece, RawScript
from app.simulator.server import Simulator
from tests.e2e.harness import Client, text_of
from tests.e2e.scenes import assert_goes_on, first_turn_id, of_type, opened
from tests.e2e.wire import DONE, chunk

BAD = "\ufffd"


def script(*deltas: str, finish: str = "stop") -> RawScript:
    """An answer out of raw JSON deltas."""
    pieces = [b'data: {"choices":[{"index":0,"delta":' + delta.encode() + b"}]}\n\n" for delta in deltas]
    return RawScript(pieces=(RawPiece(data=b"".join(pieces) + chunk({}, finish) + DONE),))


async def test_input_and_metadata(client: Client, provider: Simulator) -> None:
    for text in (r'"a\u0000b\ud800c"', r'[{"type": "text", "text": "a\u0000b\ud800c"}]'):
        session = await client.session()
        body = rf'{{"input": {text}, "metadata": {{"k\u0000": "v\udfff\u0000"}}}}'
        response = await client.http.post(
            f"/sessions/{session}/turns", content=body.encode(), headers={"Content-Type": "application/json", "Accept": "application/json"}
        )
        assert response.status_code == 200, response.text
        assert response.json()["metadata"] == {f"k{BAD}": f"v{BAD}{BAD}"}
        assert (await client.get(response.json()["id"]))["metadata"] == {f"k{BAD}": f"v{BAD}{BAD}"}
        first = (await client.messages(session))[0]["content"]
        assert f"a{BAD}b{BAD}c" in json.dumps(first, ensure_ascii=False)
        await assert_goes_on(client, provider, session)


async def test_deltas_reasoning_and_refusals(client: Client, provider: Simulator) -> None:
    session = await client.session()
    provider.play(
        script(r'{"reasoning_content":"r\u0000\ud83e"}', r'{"content":"a\u0000"}', r'{"content":"b\ud800"}', r'{"content":"\ud83e\udd80"}')
    )
    frames = await client.run(session)
    assert frames[-1].type == "turn.completed", frames[-1].data
    assert text_of(frames) == frames[-1].data["output"] == f"a{BAD}b{BAD}\U0001f980"
    assert [frame.raw for frame in await client.replay(first_turn_id(frames))] == [frame.raw for frame in frames]
    assert (await client.messages(session))[-1]["content"] == f"a{BAD}b{BAD}\U0001f980"
    await assert_goes_on(client, provider, session)


async def test_tool_arguments_results_and_names(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (_, client):
        session = await client.session()
        calls = [
            (r"dirty", r"{\"said\": \"x\\u0000\\ud800\"}"),
            (r"dirty", r"{\"said\": \"y\u0000\"}"),
            (r"not_a_number", r"{}"),
            (r"no\u0000such\ud800", r"{}"),
        ]
        deltas = [
            f'{{"tool_calls":[{{"index":{index},"id":"c{index}","type":"function","function":{{"name":"{name}","arguments":"{arguments}"}}}}]}}'
            for index, (name, arguments) in enumerate(calls)
        ]
        provider.play(script(*deltas, finish="tool_calls"), "text=Done")
        frames = await client.run(session)
        assert frames[-1].type == "turn.completed", frames[-1].data
        outputs = {frame.data["tool_call_id"]: frame.data["output"] for frame in of_type(frames, "tool.completed")}
        assert outputs["c0"] == f"a{BAD}b{BAD}cx{BAD}{BAD}"
        assert len(outputs) == 4
        result = json.loads(outputs["c2"], parse_constant=lambda name: f"not JSON: {name}")
        assert result == {"x": None, "y": [None], BAD: f"z{BAD}"}
        stored = {message["tool_call_id"]: message["content"] for message in await client.messages(session) if message["role"] == "tool"}
        assert stored == outputs
        assert [frame.raw for frame in await client.replay(first_turn_id(frames))] == [frame.raw for frame in frames]
        assert "\\u0000" not in json.dumps([frame.data for frame in frames])
        sent = await assert_goes_on(client, provider, session)
        assert "\\u0000" not in json.dumps(sent)


async def test_numbers_that_json_lacks_in_a_body_are_refused(client: Client) -> None:
    session = await client.session()
    for part in ("NaN", "Infinity", "-Infinity", "1e999"):
        body = f'{{"input": [{{"type": "file", "file": {{"size": {part}}}}}], "background": true}}'
        response = await client.http.post(f"/sessions/{session}/turns", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code in {202, 422}, (part, response.text)
        if response.status_code == 202:
            assert (await client.replay(response.json()["id"]))[-1].type.startswith("turn.")
            assert "Infinity" not in (await client.http.get(f"/sessions/{session}/messages")).text
