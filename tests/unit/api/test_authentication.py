import asyncio
import hashlib
from datetime import UTC, datetime

import pytest

from app.api.authentication import Authenticator, check_admin, presented_key
from app.domain.errors import ForbiddenError, UnauthorizedError, UnavailableError
from app.domain.ids import KeyId, TenantId
from app.domain.tenants import Principal, Tenant, TenantSettings

KEY = "agw_0123456789abcdef0123456789abcdef"
ADMIN = "a-long-admin-key"


class HandDrivenClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def unix_ms(self) -> int:
        return round(self.seconds * 1_000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Keys:
    """Keys by hash. Counts the lookups; ``gate`` holds them back, ``away`` makes them fail."""

    def __init__(self, *keys: str) -> None:
        self.known = {hashlib.sha256(key.encode()).digest(): KeyId(f"key_{key}") for key in keys}
        self.lookups = 0
        self.away = False
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def authenticate(self, key_hash: bytes) -> Principal | None:
        self.lookups += 1
        self.asked.set()
        await self.gate.wait()
        if self.away:
            raise UnavailableError("storage_unavailable", "The database cannot be reached right now.")
        key_id = self.known.get(key_hash)
        tenant = Tenant(id=TenantId("ten_1"), name="acme", revision=1, settings=TenantSettings(), chains={})
        return None if key_id is None else Principal(tenant=tenant, key_id=key_id)


async def test_a_known_key_is_looked_up_once_in_five_seconds() -> None:
    keys, clock = Keys(KEY), HandDrivenClock()
    authenticator = Authenticator(keys, clock)

    first = await authenticator.authenticate(f"Bearer {KEY}", None)
    clock.seconds += 4.9
    again = await authenticator.authenticate(None, KEY)

    assert first == again
    assert first.key_id == f"key_{KEY}"
    assert keys.lookups == 1


async def test_a_disabled_key_stops_working_within_five_seconds() -> None:
    keys, clock = Keys(KEY), HandDrivenClock()
    authenticator = Authenticator(keys, clock)
    await authenticator.authenticate(f"Bearer {KEY}", None)

    keys.known.clear()
    clock.seconds += 5.0

    with pytest.raises(UnauthorizedError):
        await authenticator.authenticate(f"Bearer {KEY}", None)
    keys.away = True
    clock.seconds += 2.0
    with pytest.raises(UnavailableError):
        await authenticator.authenticate(f"Bearer {KEY}", None)


async def test_an_unknown_key_is_remembered_for_a_second_only() -> None:
    keys, clock = Keys(), HandDrivenClock()
    authenticator = Authenticator(keys, clock)
    for _ in range(3):
        with pytest.raises(UnauthorizedError):
            await authenticator.authenticate(f"Bearer {KEY}", None)
    assert keys.lookups == 1

    keys.known.update(Keys(KEY).known)
    clock.seconds += 1.0

    assert (await authenticator.authenticate(f"Bearer {KEY}", None)).key_id == f"key_{KEY}"


async def test_200_requests_with_one_key_at_once_cause_one_query() -> None:
    keys = Keys(KEY)
    authenticator = Authenticator(keys, HandDrivenClock())
    keys.gate.clear()
    requests = [asyncio.create_task(authenticator.authenticate(f"Bearer {KEY}", None)) for _ in range(200)]
    await keys.asked.wait()
    keys.gate.set()

    found = await asyncio.gather(*requests)

    assert {principal.key_id for principal in found} == {f"key_{KEY}"}
    assert keys.lookups == 1


async def test_a_request_that_leaves_does_not_take_the_lookup_from_the_others() -> None:
    keys = Keys(KEY)
    authenticator = Authenticator(keys, HandDrivenClock())
    keys.gate.clear()
    leaver, stayer = (asyncio.create_task(authenticator.authenticate(f"Bearer {KEY}", None)) for _ in range(2))
    await keys.asked.wait()

    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    keys.gate.set()

    assert (await stayer).key_id == f"key_{KEY}"
    assert keys.lookups == 1


async def test_a_known_key_works_for_half_a_minute_while_the_database_is_away() -> None:
    keys, clock = Keys(KEY), HandDrivenClock()
    authenticator = Authenticator(keys, clock)
    await authenticator.authenticate(f"Bearer {KEY}", None)
    keys.away = True

    clock.seconds += 34.9
    for _ in range(5):
        assert (await authenticator.authenticate(f"Bearer {KEY}", None)).key_id == f"key_{KEY}"
    assert keys.lookups == 2  # an outage is not asked about with every request

    clock.seconds += 0.2
    with pytest.raises(UnavailableError):
        await authenticator.authenticate(f"Bearer {KEY}", None)
    keys.away = False
    assert (await authenticator.authenticate(f"Bearer {KEY}", None)).key_id == f"key_{KEY}"


async def test_an_unremembered_key_is_not_called_wrong_while_the_database_is_away() -> None:
    keys = Keys(KEY)
    keys.away = True

    with pytest.raises(UnavailableError):
        await Authenticator(keys, HandDrivenClock()).authenticate(f"Bearer {KEY}", None)


async def test_guessing_keys_displaces_no_good_one_and_memory_is_bounded() -> None:
    keys = Keys(KEY)
    authenticator = Authenticator(keys, HandDrivenClock(), max_entries=10)
    await authenticator.authenticate(f"Bearer {KEY}", None)

    for guess in range(50):
        with pytest.raises(UnauthorizedError):
            await authenticator.authenticate(f"Bearer guess-{guess}", None)
    await authenticator.authenticate(f"Bearer {KEY}", None)

    assert keys.lookups == 51


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [(None, None), ("", ""), ("Bearer ", None), ("Bearer", None), ("Basic YTpi", None), ("Bearer " + "x" * 600, None), (None, "  ")],
    ids=["nothing", "empty", "bearer and nothing", "bearer alone", "basic", "endless", "blank"],
)
async def test_a_request_without_a_usable_key_never_reaches_the_database(authorization: str | None, x_api_key: str | None) -> None:
    keys = Keys("", " ")

    with pytest.raises(UnauthorizedError):
        await Authenticator(keys, HandDrivenClock()).authenticate(authorization, x_api_key)

    assert keys.lookups == 0


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [("Bearer k", None), ("bearer k", "other"), ("BEARER   k ", None), (None, " k"), ("Basic YTpi", "k"), ("Bearer ", "k")],
)
def test_a_key_comes_as_bearer_or_in_its_own_header(authorization: str | None, x_api_key: str | None) -> None:
    assert presented_key(authorization, x_api_key) == "k"


def test_the_admin_key_opens() -> None:
    check_admin(ADMIN, f"Bearer {ADMIN}", None)
    check_admin(ADMIN, None, ADMIN)


@pytest.mark.parametrize("presented", [None, "Bearer ", f"Bearer {KEY}", f"Bearer {ADMIN}x", f"Bearer {ADMIN[:-1]}", "Bearer \xe9\xff"])
def test_anything_else_does_not(presented: str | None) -> None:
    with pytest.raises(UnauthorizedError):
        check_admin(ADMIN, presented, None)


@pytest.mark.parametrize("admin_key", [None, "", " ", "          ", "short"])
@pytest.mark.parametrize("presented", ["", " ", "short", "          ", KEY])
def test_without_a_real_admin_key_everything_of_the_operator_is_closed(admin_key: str | None, presented: str) -> None:
    with pytest.raises(ForbiddenError) as raised:
        check_admin(admin_key, f"Bearer {presented}", None)

    assert raised.value.code == "admin_disabled"
