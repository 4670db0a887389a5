"""Redaction of error texts."""

import pytest

from app.tools.redaction import fit_to_show

KEY = "sk-test-AAAA1111BBBB2222CCCC3333"


@pytest.mark.parametrize(
    "text",
    [
        f"401 for https://api.example/v1?key={KEY}&x=1",
        f"Authorization: Bearer {KEY}\r\nHost: x",
        f"{{'Authorization': 'Bearer {KEY}', 'X-Api-Key': '{KEY}'}}",
        f"[(b'authorization', b'Bearer {KEY}'), (b'x-api-key', b'{KEY}')]",
        f'{{"authorization": ["Bearer {KEY}"]}}',
        f"incorrect API key provided: {KEY}.",
        f"x-api-key={KEY}",
    ],
)
def test_a_key_is_gone_and_so_are_its_halves(text: str) -> None:
    shown = fit_to_show(text)
    assert not [part for part in (KEY[:16], KEY[16:], "AAAA1111", "CCCC3333") if part in shown]
    assert "[redacted]" in shown


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql://app:p@ss/w0rd@db:5432/prod is away", "w0rd"),
        ("host=db password=hunter2 dbname=x", "hunter2"),
        ("password: 'hunter two'", "two"),
        ("Cookie: a=one; b=two", "two"),
        ("Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "MIIabc"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.c2ln", "c2ln"),
        ("AKIAIOSFODNN7EXAMPLE", "EXAMPLE"),
        ("token a1B2c3D4e5F6g7H8i9J0k1L2 refused", "a1B2c3D4"),
        ("agw_0123456789abcdef", "456789"),
        ("connect to db.prod.internal:5432", "db.prod"),
        ("connect to 10.1.2.3:5432", "10.1"),
        ("in /srv/gateway/app/tool.py, line 3", "gateway"),
        (r"in C:\Users\me\tool.py", "Users"),
    ],
)
def test_credentials_inner_addresses_and_paths_are_replaced(text: str, secret: str) -> None:
    assert secret not in fit_to_show(text)


@pytest.mark.parametrize(
    "text",
    [
        "division by zero",
        "unexpected keyword argument 'token'",
        "https://example.com/a/b/c answered 500",
        "550e8400-e29b-41d4-a716-446655440000 not found",
        "expected km/h or m/s, not a/b/c",
        "basic information is missing",
        "sess_0123456789abcdefghjkmnpqrs has no file 12/2026",
    ],
)
def test_plain_texts_stay(text: str) -> None:
    assert fit_to_show(text) == text
