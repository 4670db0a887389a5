import pytest
from pydantic import SecretStr, ValidationError

from app.api.authentication import check_admin
from app.cli.errors import described
from app.settings import MIN_ADMIN_KEY_CHARACTERS, Settings


@pytest.mark.parametrize("blank", ["", " ", "\t\n"], ids=["empty", "space", "white"])
def test_a_blank_key_counts_as_unset(blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", blank)
    monkeypatch.setenv("GATEWAY_SECRET_KEY", blank)
    settings = Settings()
    assert settings.admin_key is None
    assert settings.secret_key is None


@pytest.mark.parametrize(
    ("name", "value", "minimum"),
    [
        ("GATEWAY_ADMIN_KEY", "hunter2", "8"),
        ("GATEWAY_SECRET_KEY", "hunter2", "8"),
        ("GATEWAY_SECRET_KEY", "a-secret-that-is-long-enough, hunter2", "8"),
    ],
    ids=["admin", "secret", "one-of-two-secrets"],
)
def test_a_key_that_is_too_short_is_refused_by_its_name(name: str, value: str, minimum: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError) as raised:
        Settings()
    text, code = described(raised.value)
    assert code == 2
    assert text.startswith(f"{name}: ")
    assert f"at least {minimum} characters" in text
    assert "hunter2" not in text
    assert "Value error" not in text


def test_a_key_that_is_taken_at_the_start_opens_the_admin_api() -> None:
    key = "k" * MIN_ADMIN_KEY_CHARACTERS
    assert Settings(admin_key=SecretStr(key)).admin_key == SecretStr(key)
    check_admin(key, f"Bearer {key}", None)


def test_a_rotation_of_secrets_is_taken() -> None:
    value = "the-new-secret-of-the-tests,the-old-secret-of-the-tests,"
    assert Settings(secret_key=SecretStr(value)).secret_key == SecretStr(value)
