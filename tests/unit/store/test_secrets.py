import pytest

from app.domain.errors import InvalidRequestError
from app.store.secrets import Sealer, UnsealError

SECRET = "sk-test-AAAA1111BBBB2222CCCC3333"


def test_what_is_sealed_is_unreadable_and_comes_back() -> None:
    sealer = Sealer("one secret key")

    token = sealer.seal(SECRET)

    assert SECRET.encode() not in token
    assert sealer.unseal(token) == SECRET


def test_another_process_with_the_same_key_unseals() -> None:
    assert Sealer("one secret key").unseal(Sealer(" one secret key ").seal(SECRET)) == SECRET


@pytest.mark.parametrize("secret_key", [None, "", "  ", " , "], ids=["unset", "empty", "blank", "only commas"])
def test_without_a_secret_key_nothing_is_stored(secret_key: str | None) -> None:
    with pytest.raises(InvalidRequestError, match="GATEWAY_SECRET_KEY") as raised:
        Sealer(secret_key).seal(SECRET, pointer="/providers/0/api_key")

    assert raised.value.pointer == "/providers/0/api_key"
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("secret_key", [None, "another key"], ids=["no key", "another key"])
def test_a_wrong_key_is_a_typed_error_without_the_secret(secret_key: str | None) -> None:
    token = Sealer("one secret key").seal(SECRET)

    with pytest.raises(UnsealError) as raised:
        Sealer(secret_key).unseal(token)

    assert SECRET not in str(raised.value)
    assert token.decode() not in str(raised.value)


def test_a_rotation_reads_old_tokens_and_renews_them_under_the_new_key() -> None:
    token = Sealer("old").seal(SECRET)
    rotating = Sealer("new,old")

    assert rotating.unseal(token) == SECRET
    renewed = rotating.renew(token)

    assert Sealer("new").unseal(renewed) == SECRET
    assert rotating.renew(renewed) == renewed


def test_what_cannot_be_read_is_not_renewed() -> None:
    token = Sealer("lost").seal(SECRET)

    assert Sealer("new").renew(token) == token
    assert Sealer(None).renew(token) == token
