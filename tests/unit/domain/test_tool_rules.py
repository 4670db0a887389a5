"""What a tenant's tools must be like to be stored."""

import base64
from typing import Any

import msgspec
import pytest

from app.domain.errors import InvalidRequestError
from app.domain.tenant_rules import check_spec
from app.domain.tenant_tools import WebhookToolSpec
from app.domain.tenants import TenantSpec
from app.domain.tool_rules import MAX_TOOLS, signing_key

GOOD = WebhookToolSpec(name="lookup", description="Looks up.", url="https://hooks.example/lookup")


def check(*tools: WebhookToolSpec) -> None:
    check_spec(TenantSpec(name="acme", tools=tools))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"secret": "env:HOOK_SECRET"},
        {"secret": "sixteen-letters-"},
        {"secret": "whsec_c2lnbmluZyBrZXk="},
        {"secret": ""},
        {"headers": {"X-Team": "blue", "X-Kept": "***"}},
        {"timeout_s": 600.0},
        {"url": "http://10.0.0.1:8080/hook"},
        {"name": "a" * 64},
    ],
)
def test_what_works_passes(changes: dict[str, Any]) -> None:
    check(msgspec.structs.replace(GOOD, **changes))


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": "a.b"}, "/name"),
        ({"name": "a" * 65}, "/name"),
        ({"name": "lookup\n"}, "/name"),
        ({"description": " "}, "/description"),
        ({"description": "x" * 20_000}, "/description"),
        ({"url": "ftp://hooks.example/"}, "/url"),
        ({"url": "https://user:pass@hooks.example/"}, "/url"),
        ({"url": "https://hooks.example/?key=1"}, "/url"),
        ({"url": "https://"}, "/url"),
        ({"secret": "short"}, "/secret"),
        ({"secret": "with a blank in it all"}, "/secret"),
        ({"secret": "whsec_not-base64-at-all!"}, "/secret"),
        ({"secret": "x" * 513}, "/secret"),
        ({"secret": "env:1BAD"}, "/secret"),
        ({"secret": "env:GATEWAY_SECRET_KEY"}, "/secret"),
        ({"headers": {"Content-Type": "text/plain"}}, "/headers/Content-Type"),
        ({"headers": {"Webhook-Signature": "v1,forged"}}, "/headers/Webhook-Signature"),
        ({"headers": {"idempotency-key": "1"}}, "/headers/idempotency-key"),
        ({"headers": {"X-A": "line\nbreak"}}, "/headers/X-A"),
        ({"timeout_s": 0.0}, "/timeout_s"),
        ({"timeout_s": 601.0}, "/timeout_s"),
        ({"timeout_s": float("nan")}, "/timeout_s"),
        ({"secret_arguments": tuple(str(number) for number in range(257))}, "/secret_arguments"),
    ],
)
def test_what_cannot_work_is_refused_where_it_stands(changes: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check(GOOD, msgspec.structs.replace(GOOD, **{"name": "second", **changes}))
    assert refused.value.pointer == f"/tools/1{pointer}"


def test_names_are_given_once_and_tools_are_counted() -> None:
    with pytest.raises(InvalidRequestError, match="two tools named 'lookup'"):
        check(GOOD, GOOD)
    with pytest.raises(InvalidRequestError, match="more than"):
        check(*(msgspec.structs.replace(GOOD, name=f"t{number}") for number in range(MAX_TOOLS + 1)))


def test_a_secret_is_bytes_of_base64_behind_the_prefix_and_itself_without_it() -> None:
    assert signing_key("whsec_" + base64.b64encode(b"the key of the tests").decode()) == b"the key of the tests"
    assert signing_key("plain-text-of-a-key") == b"plain-text-of-a-key"
    assert signing_key("whsec_grün-grün-grün") is None
    assert signing_key("") is None


def test_no_secret_is_in_a_repr() -> None:
    assert "hunter2" not in repr(msgspec.structs.replace(GOOD, secret="hunter2-hunter2-hunter2", headers={"X-A": "hunter2"}))
