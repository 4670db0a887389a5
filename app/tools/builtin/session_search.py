"""The tool ``session_search``: what was said in earlier conversations, and in the part of this one that the model is no longer shown.

Modes follow from the arguments: ``query`` finds messages (one of each conversation, or all those of ``session_id``), ``session_id`` reads a
conversation's beginning and end, with ``around`` the messages about one place, and nothing lists the newest conversations. With
``summarize`` each conversation found is told in a few sentences instead of shown; where that cannot be had it is shown, and says why.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from app.domain.guardrails import ToolTraits
from app.domain.ids import SessionId
from app.domain.messages import StoredMessage, canonical_json, clean_text
from app.domain.recall import Reader, SearchHit, SessionExcerpt
from app.domain.search_terms import message_text, query_terms
from app.domain.tools import ToolContext, ToolOutcome
from app.ports import SearchStore
from app.tools.auxiliary import Auxiliary, Said
from app.tools.builtin.recollection import MAX_SUMMARY, recollect
from app.tools.tool import CORE, RegisteredTool

DEFAULT_HITS = 5
MAX_HITS = 10
RECENT = 10
FIRST, LAST = 20, 10
"""Messages of a conversation that is read."""
REACH = 10
"""Messages on either side of ``around``."""
_HIT_CHARACTERS = 1_200
_NEIGHBOUR_CHARACTERS = 300
_READ_CHARACTERS = 800
_WHOLE_CHARACTERS = 8_000
_MAX_QUERY = 500
_LAST_SEQ = 2**62
TIMEOUT_S = 240.0
"""The summaries of a chain that waits and falls back take their time."""

_SESSION_ID = re.compile(r"sess_[0-9a-z]{26}")

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "Words to look for; messages that have all of them come first."},
        "session_id": {"type": "string", "description": "Only this conversation; without a query it is read: its beginning and its end."},
        "around": {"type": "integer", "minimum": 1, "description": "With session_id: the messages around the one with this seq."},
        "summarize": {
            "type": "boolean",
            "description": "With a query: tell in a few sentences what each conversation says about it, instead of showing messages.",
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_HITS, "description": f"Most hits. Default: {DEFAULT_HITS}."},
    },
}
_DESCRIPTION = (
    "Search earlier conversations with this user, and messages of this one that were summarised away. Give a query to find messages, a "
    "session_id to read a conversation, session_id and around to read on at a place, nothing to list the newest conversations. Use it "
    "when the user refers to something that is not in this conversation, before you ask them to repeat it."
)


def session_search_tool(store: SearchStore, auxiliary: Auxiliary) -> RegisteredTool:
    """The tool, searching in ``store``; ``auxiliary`` has the models that summarise."""

    async def run(arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
        if context.session_id is None:
            return _refusal("Conversations belong to sessions, and this call has none.")
        reader = Reader(tenant_id=context.tenant_id, session_id=context.session_id)
        return await _search(store, auxiliary, reader, arguments)

    return RegisteredTool(
        name="session_search",
        description=_DESCRIPTION,
        parameters=_PARAMETERS,
        handler=run,
        toolset=CORE,
        origin="built in",
        traits=ToolTraits(read_only=True),
        timeout_s=TIMEOUT_S,
    )


async def _search(store: SearchStore, auxiliary: Auxiliary, reader: Reader, arguments: dict[str, Any]) -> ToolOutcome:
    query = clean_text(arguments.get("query", "")).strip()[:_MAX_QUERY]
    named, around = arguments.get("session_id"), arguments.get("around")
    if named is not None and _SESSION_ID.fullmatch(named) is None:
        return _refusal("This is not the id of a conversation: they begin with sess_ and are found by a search or a listing.")
    if query and not query_terms(query):
        return _refusal("The query has no words.")
    if query:
        within = None if named is None else SessionId(named)
        hits = await store.discover(reader, query, within, min(arguments.get("limit", DEFAULT_HITS), MAX_HITS))
        told = await recollect(store, auxiliary, reader, hits=hits, query=query) if hits and arguments.get("summarize") else []
        return _found(reader, query, hits, told)
    if named is not None:
        return await _read(store, reader, SessionId(named), around)
    if around is not None:
        return _refusal("around needs a session_id.")
    recent = await store.recent(reader, RECENT)
    return _shown("recent", {"sessions": [_recent(excerpt, reader) for excerpt in recent]})


async def _read(store: SearchStore, reader: Reader, session_id: SessionId, around: int | None) -> ToolOutcome:
    if around is None:
        excerpt = await store.excerpt(reader, session_id, FIRST, LAST)
    else:
        excerpt = await store.around(reader, session_id, min(around, _LAST_SEQ), REACH)
    if excerpt is None:
        return _refusal("There is no such conversation.")
    shown = [_message(each, _WHOLE_CHARACTERS if each.seq == around else _READ_CHARACTERS) for each in excerpt.messages]
    result = {**_session(excerpt, reader), "messages": shown}
    if excerpt.total > len(shown):
        result["note"] = "Not all messages are shown: give around, the seq of a message, to read on there."
    return _shown("read", result)


def _found(reader: Reader, query: str, hits: Sequence[SearchHit], told: Sequence[Said]) -> ToolOutcome:
    """What was found; ``told`` are the summaries of the first hits."""
    shown = [_told(hit, reader, query, said) for hit, said in zip(hits, told, strict=False)]
    shown += [_hit(hit, reader, query) for hit in hits[len(shown) :]]
    outcome = _shown("discover", {"query": query, "hits": shown})
    return msgspec.structs.replace(outcome, uses=tuple(use for said in told for use in said.uses))


def _told(hit: SearchHit, reader: Reader, query: str, said: Said) -> dict[str, Any]:
    if not said.text:
        return {**_hit(hit, reader, query), "note": f"Not summarised: {said.fault}"}
    return {**_session(hit.excerpt, reader), "seq": hit.seq, "hits_in_session": hit.hits, "summary": said.text[:MAX_SUMMARY]}


def _hit(hit: SearchHit, reader: Reader, query: str) -> dict[str, Any]:
    shown = [
        _message(each, _HIT_CHARACTERS, query) if each.seq == hit.seq else _message(each, _NEIGHBOUR_CHARACTERS)
        for each in hit.excerpt.messages
    ]
    return {**_session(hit.excerpt, reader), "seq": hit.seq, "hits_in_session": hit.hits, "messages": shown}


def _recent(excerpt: SessionExcerpt, reader: Reader) -> dict[str, Any]:
    return {**_session(excerpt, reader), "begins": [_message(each, _NEIGHBOUR_CHARACTERS) for each in excerpt.messages]}


def _session(excerpt: SessionExcerpt, reader: Reader) -> dict[str, Any]:
    result: dict[str, Any] = {
        "session_id": excerpt.session_id,
        "started_at": _time(excerpt.created_at_ms),
        "last_used_at": _time(excerpt.updated_at_ms),
        "messages_in_session": excerpt.total,
    }
    if excerpt.session_id == reader.session_id:
        result["this_conversation"] = True
    return result


def _message(stored: StoredMessage, size: int, query: str = "") -> dict[str, Any]:
    """A message in at most ``size`` characters: those about the first word of ``query`` that it has, else its beginning."""
    text = message_text(stored.message)
    start = 0 if len(text) <= size else max(0, min(_first_match(text, query) - size // 4, len(text) - size))
    cut = text[start : start + size]
    shown = f"{'… ' if start else ''}{cut}{' …' if start + size < len(text) else ''}"
    return {"seq": stored.seq, "role": stored.message.role.value, "at": _time(stored.created_at_ms), "text": shown}


def _first_match(text: str, query: str) -> int:
    lowered = text.lower()
    places = [lowered.find(term.text) for term in query_terms(query)]
    return min((place for place in places if place >= 0), default=0)


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).isoformat(timespec="seconds")


def _shown(mode: str, result: dict[str, Any]) -> ToolOutcome:
    return ToolOutcome(output=canonical_json({"mode": mode, **result}))


def _refusal(text: str) -> ToolOutcome:
    return ToolOutcome(output=text, is_error=True)
