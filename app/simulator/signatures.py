"""Signatures of thinking that can be checked without remembering what was said: a prefix, and a digest of the model and the words.

A tool call's id tells in the same way whether thinking came before the call.
"""

import hashlib

_PREFIX = "sim-signature-"
_THOUGHTFUL_CALL = "toolu_thoughtful_"
_CALL = "toolu_"


def sign(model: str, thinking: str) -> str:
    """Return the signature of what a model thought."""
    digest = hashlib.sha256(f"{model}\n{thinking}".encode("utf-8", "replace")).hexdigest()
    return _PREFIX + digest[:32]


def is_signed(model: str, thinking: object, signature: object) -> bool:
    """Say whether the signature is that of this model for these very words."""
    return isinstance(thinking, str) and signature == sign(model, thinking)


def call_prefix(*, thoughtful: bool) -> str:
    """Return how the ids of calls begin, behind thinking or without."""
    return _THOUGHTFUL_CALL if thoughtful else _CALL


def is_thoughtful(call_id: object) -> bool:
    """Say whether thinking came before the call."""
    return isinstance(call_id, str) and call_id.startswith(_THOUGHTFUL_CALL)
