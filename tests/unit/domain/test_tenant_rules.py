import pytest

from app.domain.spec_rules import env_name, is_credential
from app.domain.tenant_rules import is_strong_key, is_tenant_name, origin


@pytest.mark.parametrize("name", ["a", "acme", "0-day", "a_b-c", "a" * 63])
def test_a_tenant_name(name: str) -> None:
    assert is_tenant_name(name)


@pytest.mark.parametrize("name", ["", "A", "_a", "-a", "a.b", "a b", "a\n", "a" * 64, "é"])
def test_no_tenant_name(name: str) -> None:
    assert not is_tenant_name(name)


def test_a_reference_to_the_environment_is_told_from_a_literal() -> None:
    assert env_name("env:NAME") == "NAME"
    assert env_name("environment") is None


@pytest.mark.parametrize("value", ["", " ", "a b", "a\n", "a\x7f", "é"])
def test_what_no_header_can_carry_is_no_credential(value: str) -> None:
    assert not is_credential(value)


def test_a_key_is_strong_from_8_characters_on() -> None:
    assert not is_strong_key("x" * 7)
    assert is_strong_key("x" * 8)
    assert not is_strong_key("x" * 513)


@pytest.mark.parametrize("other", ["http://h/v1", "https://h:8443/v1", "https://i/v1"], ids=["scheme", "port", "host"])
def test_a_credentials_audience_is_scheme_host_and_port(other: str) -> None:
    assert origin("https://h/v1") == origin("https://H/v2/")
    assert origin("https://h/v1") != origin(other)
