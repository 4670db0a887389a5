import pytest

from app.context.acceptance import Accepted, Fault, Rejected, accept
from app.domain.model import FinishReason

HEADED = "## Goal\nTASK-7: do X\n## State of the work\nHalf done."

REJECTED: dict[str, tuple[str, Fault]] = {
    "nothing": ("", Fault.EMPTY),
    "blank": (" \n\t ", Fault.EMPTY),
    "marks only": ("---\n***\n", Fault.EMPTY),
    "an empty fence": ("```markdown\n\n```", Fault.EMPTY),
    "an empty block": ("[Historical Summary]\n[End of Historical Summary]", Fault.EMPTY),
    "refusal": ("I'm sorry, I can't help with that", Fault.REFUSED),
    "refusal with a typographic apostrophe": ("I\u2019m sorry, but I can\u2019t assist with that request.", Fault.REFUSED),
    "refusal in quotes": ('"I cannot help with this conversation."', Fault.REFUSED),
    "refusal in bold": ("**I'm unable to summarize this.**", Fault.REFUSED),
    "of an AI": ("As an AI language model, I do not keep memories.", Fault.REFUSED),
    "error": ("Error generating summary: connection reset", Fault.ERROR_TEXT),
    "error in brackets": ("[Error: 402 Payment Required]", Fault.ERROR_TEXT),
    "api error": ("API Error: 402 insufficient credits", Fault.ERROR_TEXT),
    "error object": ('{"error": {"message": "overloaded"}}', Fault.ERROR_TEXT),
    "an error occurred": ("An error occurred while processing your request.", Fault.ERROR_TEXT),
    "status": ("HTTP 500 from upstream", Fault.ERROR_TEXT),
    "bare status": ("502 Bad Gateway", Fault.ERROR_TEXT),
    "page": ("<html><body>Service</body></html>", Fault.ERROR_TEXT),
    "unavailable": ("Summary unavailable.", Fault.ERROR_TEXT),
    "failed": ("Failed to generate a summary of this conversation.", Fault.ERROR_TEXT),
    "far too short": ("Done.", Fault.TOO_SHORT),
}


@pytest.mark.parametrize(("text", "fault"), REJECTED.values(), ids=REJECTED)
def test_what_is_no_summary(text: str, fault: Fault) -> None:
    assert accept(text, FinishReason.STOP, content_tokens=5_000, limit=500) == Rejected(fault)


ACCEPTED: dict[str, tuple[str, str]] = {
    "headings": (HEADED, HEADED),
    "blanks around": (f"\n {HEADED} \n", HEADED),
    "a fence around": (f"```markdown\n{HEADED}\n```", HEADED),
    "the block around": (f"[Historical Summary]\n{HEADED}\n[End of Historical Summary]", HEADED),
    "plain words": ("The user wants X; half of it is done.", "The user wants X; half of it is done."),
    "a refusal that is reported": (f"{HEADED}\nI'm sorry, I can't help with that", f"{HEADED}\nI'm sorry, I can't help with that"),
    "about errors": ("Errors in the build were fixed by the user.", "Errors in the build were fixed by the user."),
    "about a failure": ("Failed tests were repaired one by one.", "Failed tests were repaired one by one."),
    "headings behind an apology": (f"I'm sorry for the delay.\n{HEADED}", f"I'm sorry for the delay.\n{HEADED}"),
    "another script": ("用户想要完成任务七 目前已经完成一半。", "用户想要完成任务七 目前已经完成一半。"),
}


@pytest.mark.parametrize(("text", "summary"), ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_a_summary(text: str, summary: str) -> None:
    assert accept(text, FinishReason.STOP, content_tokens=5_000, limit=500) == Accepted(summary)


@pytest.mark.parametrize("finish", [FinishReason.REFUSAL, FinishReason.CONTENT_FILTER])
def test_a_reply_that_was_refused_is_none_whatever_it_says(finish: FinishReason) -> None:
    assert accept(HEADED, finish, content_tokens=5_000, limit=500) == Rejected(Fault.REFUSED)


def test_much_content_needs_more_than_a_word() -> None:
    assert accept("User asked for X", FinishReason.STOP, content_tokens=10_000, limit=500) == Rejected(Fault.TOO_SHORT)
    assert accept("User asked for X", FinishReason.STOP, content_tokens=9_999, limit=500) == Accepted("User asked for X")


def test_a_reply_that_was_cut_ends_with_its_last_whole_line() -> None:
    assert accept(f"{HEADED}\n## Fi", FinishReason.LENGTH, content_tokens=5_000, limit=500) == Accepted(HEADED)
    assert accept("The user wants", FinishReason.LENGTH, content_tokens=5_000, limit=500) == Accepted("The user wants")


BOUNDED: dict[str, tuple[str, str]] = {
    "at a line end": ("## Goal\n" + "- a fact\n" * 100, "## Goal\n" + "\n".join(["- a fact"] * 39)),
    "at a blank": ("word " * 200, " ".join(["word"] * 80)),
    "at a character": ("é" * 900, "é" * 200),
}


@pytest.mark.parametrize(("text", "summary"), BOUNDED.values(), ids=BOUNDED)
def test_a_summary_that_is_too_long_is_cut(text: str, summary: str) -> None:
    assert accept(text, FinishReason.STOP, content_tokens=5_000, limit=100) == Accepted(summary)
