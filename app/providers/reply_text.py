"""What a reply says: pieces of visible text and reasoning, cleaned, as deltas at once and as a whole at the end."""

from app.domain.messages import clean_text
from app.domain.model import Delta, MessageDelta, ReasoningDelta
from app.providers.think_tags import ThinkTags


class ReplyText:
    """Collects one reply. Reasoning in tags within the visible text is told apart; deltas go to the list that is handed in."""

    __slots__ = ("_attempt", "_half", "_reasoning", "_text", "_think")

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._think: ThinkTags | None = ThinkTags()
        self._half = ""
        """The first half of a surrogate pair whose second half comes with the next piece."""

    @property
    def has_reasoning(self) -> bool:
        """Whether any reasoning has come."""
        return bool(self._reasoning)

    @property
    def has_text(self) -> bool:
        """Whether any visible text has come that is not blank."""
        return any(piece.strip() for piece in self._text)

    @property
    def size(self) -> int:
        """Characters so far."""
        return sum(map(len, self._text)) + sum(map(len, self._reasoning))

    def add(self, text: str, deltas: list[Delta]) -> None:
        """Take a non-empty piece of the text as the model writes it."""
        if self._think is None and not self._half and "\x00" not in text and text.isascii():
            self._text.append(text)
            deltas.append(MessageDelta(self._attempt, text))
        else:
            self._add_with_care(text, deltas)

    def add_visible(self, text: str, deltas: list[Delta]) -> None:
        """Take a piece that is text whatever is in it."""
        self._show(clean_text(text), deltas)

    def add_reasoning(self, text: str, deltas: list[Delta]) -> None:
        """Take a piece of reasoning."""
        self._think_aloud(clean_text(text), deltas)

    def finish(self, *, complete: bool) -> tuple[str, str]:
        """Return (text, reasoning) with what was held back.

        A reasoning tag that a ``complete`` reply never closes held the answer, unless there is text beside it.
        """
        unclosed = self._flush()
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        return (reasoning, "") if complete and unclosed and not text.strip() else (text, reasoning)

    def _add_with_care(self, text: str, deltas: list[Delta]) -> None:
        text = self._half + text
        self._half = ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        text = clean_text(text)
        if self._think is None:
            self._show(text, deltas)
            return
        reasoning, visible = self._think.split(text)
        self._think_aloud(reasoning, deltas)
        self._show(visible, deltas)
        if self._think.settled:
            self._think = None

    def _show(self, text: str, deltas: list[Delta]) -> None:
        if text:
            self._text.append(text)
            deltas.append(MessageDelta(self._attempt, text))

    def _think_aloud(self, text: str, deltas: list[Delta]) -> None:
        if text:
            self._reasoning.append(text)
            deltas.append(ReasoningDelta(self._attempt, text))

    def _flush(self) -> bool:
        """Add what was held back; true when a reasoning tag was left open."""
        unclosed = False
        if self._think is not None:
            unclosed = self._think.unclosed
            reasoning, visible = self._think.finish()
            self._reasoning.append(reasoning)
            self._text.append(visible)
        if self._half:
            (self._reasoning if unclosed else self._text).append("\ufffd")
        return unclosed
