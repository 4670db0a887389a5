"""Which script a request gets, and what that script says in this round."""

from collections import OrderedDict, deque
from dataclasses import replace
from functools import lru_cache

from app.simulator.directives import last_directive, parse_words, without_directives
from app.simulator.fields import is_flag, script_from_fields
from app.simulator.mode import RequestView
from app.simulator.script import RawScript, Script, StreamFault, StreamFaultKind

_WORDS = ("the", "river", "carried", "a", "small", "paper", "boat", "past", "quiet", "houses", "under", "old", "stone", "bridges")
_SIM_TEXT_TOKENS = 50
_COUNTED_DIRECTIVES = 10_000


class ScriptChooser:
    """Chooses in the documented order: queue, directive in the message, model name, default."""

    def __init__(self) -> None:
        self._queue: deque[Script | RawScript] = deque()
        self._faults_shown: OrderedDict[str, int] = OrderedDict()

    def enqueue(self, scripts: list[Script | RawScript]) -> int:
        """Append scripts for the next requests; returns the length of the queue."""
        self._queue.extend(scripts)
        return len(self._queue)

    def clear(self) -> None:
        """Forget the queue and which faults were shown how often."""
        self._queue.clear()
        self._faults_shown.clear()

    def choose(self, view: RequestView) -> Script | RawScript:
        """Return the next script, resolved: its text and calls are those of this very request.

        Raises:
            ScriptError: when a directive cannot be understood.
        """
        if self._queue:
            queued = self._queue.popleft()
            return queued if isinstance(queued, RawScript) else resolve(queued, view, calls_due=True)
        words = _words_for(view)
        script = self._count_fault(words, _script_of(words))
        calls_due = view.offers_tools and view.rounds_done < script.rounds
        return resolve(script, view, calls_due=calls_due)

    def _count_fault(self, words: str, script: Script) -> Script:
        if script.fault is None or script.fault_times is None:
            return script
        shown = self._faults_shown.pop(words, 0)
        self._faults_shown[words] = shown + 1
        if len(self._faults_shown) > _COUNTED_DIRECTIVES:
            self._faults_shown.popitem(last=False)
        return replace(script, fault=None) if shown >= script.fault_times else script


def resolve(script: Script, view: RequestView, *, calls_due: bool) -> Script:
    """Fix the text and the calls of a script for one request."""
    if isinstance(script.fault, StreamFault) and script.fault.kind is StreamFaultKind.EMPTY:
        return replace(script, text="", reasoning_tokens=0, refusal=None, calls=())
    if script.calls and calls_due:
        number = str(view.rounds_done + 1)
        calls = tuple(
            replace(call, arguments=call.arguments.replace("$round", number).replace("$call", str(position)))
            for position, call in enumerate(script.calls, start=1)
        )
        return replace(script, text=script.preamble, calls=calls)
    return replace(script, text=_final_text(script, view), calls=())


@lru_cache(maxsize=64)
def filler(tokens: int) -> str:
    """Return a text of that many tokens (one word each)."""
    return " ".join(_WORDS[position % len(_WORDS)] for position in range(tokens))


def _final_text(script: Script, view: RequestView) -> str:
    if script.text is not None:
        return script.text
    if script.refusal is not None:
        return ""
    if script.tokens is not None:
        return filler(script.tokens)
    said = without_directives(view.user_text)
    match view.model.partition(":")[0]:
        case "sim-echo":
            return said
        case "sim-text":
            return filler(_SIM_TEXT_TOKENS)
        case _:
            return f'Hello! I am the simulator of this gateway, not a language model. You said: "{said}"'


def _words_for(view: RequestView) -> str:
    """Return the directive words that count for a request; none are an empty text."""
    found = last_directive(view.user_text)
    if found is not None:
        return found
    _, _, words = view.model.partition(":")
    return words if "=" in words or any(is_flag(word) for word in words.split(",")) else ""


@lru_cache(maxsize=256)
def _script_of(words: str) -> Script:
    return script_from_fields(parse_words(words))
