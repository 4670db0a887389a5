"""The receiver's side of Standard Webhooks, written from the specification: imports nothing of the gateway."""

import base64
import hashlib
import hmac
from collections.abc import Mapping

TOLERANCE_S = 300


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> None:
    """``headers`` by names in lower case. Raises AssertionError when the body is not what the owner of ``secret`` sent just now."""
    key = base64.b64decode(secret.split("_", 1)[1]) if secret.startswith("whsec_") else secret.encode()
    assert abs(now - int(headers["webhook-timestamp"])) <= TOLERANCE_S, "the message is too old, or from the future"
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    given = [entry.split(",", 1) for entry in headers["webhook-signature"].split(" ")]
    assert any(version == "v1" and hmac.compare_digest(value, expected) for version, value in given), "no signature fits"
