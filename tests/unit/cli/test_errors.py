import pytest
from pydantic import ValidationError

from app.api.errors import FieldError, InvalidBodyError
from app.cli.errors import CommandError, described
from app.domain.errors import ConflictError, InvalidRequestError, UnavailableError
from app.settings import Settings
from app.tools.schema import ToolConfigurationError


def unavailable() -> UnavailableError:
    error = UnavailableError("storage_unavailable", "The database is away.")
    error.__cause__ = OSError("connection\nrefused")
    return error


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (CommandError("No."), "No.", 1),
        (CommandError("No.", code=2), "No.", 2),
        (InvalidRequestError("Is not a name.", pointer="/tenants/0/name"), "Is not a name. (at /tenants/0/name)", 2),
        (InvalidBodyError("invalid_json", (FieldError("", "Not JSON."),)), "Not JSON.", 2),
        (ToolConfigurationError("Tool module x cannot be imported"), "Tool module x cannot be imported", 2),
        (ConflictError("tenant_exists", "There is one."), "There is one.", 1),
        (unavailable(), "The database is away. (connection refused)", 1),
        (TimeoutError(), "TimeoutError", 1),
    ],
    ids=["command", "misuse", "input", "body", "tool", "conflict", "database", "without-text"],
)
def test_an_error_is_one_line_and_a_code(error: BaseException, text: str, code: int) -> None:
    assert described(error) == (text, code)


def test_a_wrong_setting_is_named_by_its_variable_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_DB_POOL_SIZE", "a secret in the wrong place")
    monkeypatch.setenv("GATEWAY_POLL_S", "-1")
    with pytest.raises(ValidationError) as caught:
        Settings()
    text, code = described(caught.value)
    assert code == 2
    assert "GATEWAY_DB_POOL_SIZE: " in text
    assert "GATEWAY_POLL_S: " in text
    assert "secret" not in text
