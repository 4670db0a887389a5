import httpx

from app.cli.sse import Event, events


def test_reads_events_and_passes_over_everything_else() -> None:
    body = b"".join(
        (
            b'retry: 1000\n\n: keep-alive\n\nid: 1\nevent: a\ndata: {"type":"a"}\n\n',
            b': keep-alive\n\nid: 5\nevent: b\ndata: {"text":"x: y"}\n\nid: 6\nev',
        )
    )
    assert list(events(httpx.Response(200, content=body))) == [Event(1, "a", {"type": "a"}), Event(5, "b", {"text": "x: y"})]
