from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.providers.sse import MAX_EVENT_BYTES, EventTooLargeError, SseDecoder

STREAMS = [
    pytest.param(b"data: a\n\ndata: b\n\n", [b"a", b"b"], id="usual"),
    pytest.param(b"data:a\n\ndata:  b\n\n", [b"a", b" b"], id="only-one-space-is-removed"),
    pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], id="crlf"),
    pytest.param(b"data: a\r\rdata: b\r\r", [b"a", b"b"], id="lone-cr"),
    pytest.param(b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"], id="mixed-ends"),
    pytest.param(b"data: one\ndata: two\n\n", [b"one\ntwo"], id="several-data-lines"),
    pytest.param(b": ping\n\n: ping\n\ndata: a\n\n", [b"a"], id="comments"),
    pytest.param(b"event: x\nid: 7\nretry: 3\ndata: a\n\n", [b"a"], id="other-fields"),
    pytest.param(b"event: x\ndata: a\n\nevent: y\ndata: b\n\n", [b"a", b"b"], id="named"),
    pytest.param(b"event: x\ndata: a\nid: 7\n\nevent: y\ndata: b\ndata: c\n\n", [b"a", b"b\nc"], id="named-with-more-lines"),
    pytest.param(b"data: a\nevent: x\n\n: ping\nevent: x\ndata: b\n\n", [b"a", b"b"], id="named-in-another-order"),
    pytest.param(b"event: x\n\n\n\n\ndata: a\n\n\n\n", [b"a"], id="events-without-data"),
    pytest.param(b"\xef\xbb\xbfdata: a\n\n", [b"a"], id="byte-order-mark"),
    pytest.param(b"data\n\ndatabase: x\n\ndata:\n\n", [b""], id="empty-data-and-other-names"),
    pytest.param("data: 北京🦊é\n\n".encode(), ["北京🦊é".encode()], id="characters-of-many-bytes"),
    pytest.param(b"data: a\n\ndata: half", [b"a", b"half"], id="cut-event-comes-with-finish"),
]


def decode(chunks: list[bytes]) -> list[bytes]:
    decoder = SseDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.finish()


@pytest.mark.parametrize(("stream", "events"), STREAMS)
def test_a_stream_in_one_read(stream: bytes, events: list[bytes]) -> None:
    assert decode([stream]) == events


@pytest.mark.parametrize(("stream", "events"), STREAMS)
def test_a_stream_in_reads_of_one_byte(stream: bytes, events: list[bytes]) -> None:
    assert decode([bytes([byte]) for byte in stream]) == events


@given(cuts=st.lists(st.integers(0, 90)), stream=st.sampled_from([param.values[0] for param in STREAMS]))
def test_where_reads_are_cut_does_not_matter(cuts: list[int], stream: bytes) -> None:
    places = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    chunks = [stream[start:end] for start, end in pairwise(places)]
    assert decode(chunks) == decode([stream])


def test_an_event_is_given_as_soon_as_it_is_complete() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a") == []
    assert decoder.feed(b"b\n") == []
    assert decoder.feed(b"\ndata: c\n\ndata: d") == [b"ab", b"c"]
    assert decoder.feed(b"\n\n") == [b"d"]


def test_an_event_without_end_is_refused() -> None:
    decoder = SseDecoder()
    for _ in range(MAX_EVENT_BYTES // 1024):
        decoder.feed(b"x" * 1024)
    with pytest.raises(EventTooLargeError):
        decoder.feed(b"x")
