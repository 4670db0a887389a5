import itertools

import msgspec
import pytest

from app.domain.delivery import Limit
from app.domain.ids import ProviderId, TenantId
from app.domain.model import ApiMode
from app.domain.targets import credential_window, model_window, rate_limits, target_keys
from app.domain.tenants import Provider, Route

A, B = TenantId("ten_a"), TenantId("ten_b")
PROVIDER = Provider(
    id=ProviderId("prov_1"),
    name="primary",
    api_mode=ApiMode.CHAT_COMPLETIONS,
    base_url="http://provider/v1",
    api_key="sk-secret-1",
    headers={},
)
ROUTE = Route(provider=PROVIDER, model="m1")


def route(model: str = "m1", **changes: object) -> Route:
    return Route(provider=msgspec.structs.replace(PROVIDER, **changes), model=model)


@pytest.mark.parametrize(
    "alias",
    [
        pytest.param(route(name="other", id="prov_2"), id="another name"),
        pytest.param(route(base_url="http://provider/v1/"), id="slash at the end"),
        pytest.param(route(rpm=5), id="with a limit"),
        pytest.param(route(api_key_env="KEY"), id="the same credential from the environment"),
    ],
)
def test_aliases_of_a_target_have_the_same_keys(alias: Route) -> None:
    assert target_keys(A, alias) == target_keys(A, ROUTE)


def test_each_key_reaches_as_far_as_its_scope() -> None:
    known = target_keys(A, ROUTE)
    other_model, other_key = target_keys(A, route("m2")), target_keys(A, route(api_key="sk-secret-2"))
    assert (other_model.key == known.key, other_model.key_model == known.key_model, other_model.route == known.route) == (
        True,
        False,
        False,
    )
    assert (other_key.key == known.key, other_key.key_model == known.key_model, other_key.route == known.route) == (False, False, True)


@pytest.mark.parametrize(
    ("tenant_id", "other"),
    [
        pytest.param(B, ROUTE, id="another tenant"),
        pytest.param(B, route(api_key_env="KEY"), id="another tenant with the operator's credential"),
        pytest.param(A, route(base_url="http://elsewhere/v1"), id="another address"),
    ],
)
def test_what_differs_shares_no_key(tenant_id: TenantId, other: Route) -> None:
    assert not set(target_keys(tenant_id, other).all) & set(target_keys(A, ROUTE).all)


def test_a_credential_in_a_header_is_one() -> None:
    one, other = (target_keys(A, route(api_key="", headers={"api-key": key})) for key in ("sk-secret-1", "sk-secret-2"))
    assert one.key != other.key
    assert one.route == other.route


def test_keys_show_their_kind_and_no_credential() -> None:
    limited = msgspec.structs.replace(route(rpm=1), rpm=1)
    names = [*target_keys(A, ROUTE).all, *(limit.key for limit in rate_limits(A, limited))]
    assert [name[:2] for name in names] == ["k:", "m:", "r:", "w:", "v:"]
    assert all(len(name) == 34 and "secret" not in name for name in names)


def test_only_what_is_set_is_a_limit() -> None:
    assert rate_limits(A, ROUTE) == ()
    both = msgspec.structs.replace(route(rpm=60, tpm=9_000), rpm=7)
    assert rate_limits(A, both) == (
        Limit(key=credential_window(A, both.provider), rpm=60, tpm=9_000),
        Limit(key=model_window(A, both), rpm=7, tpm=None),
    )


def test_a_literal_credential_is_its_tenants_own_and_one_from_the_environment_is_shared() -> None:
    shared = msgspec.structs.replace(PROVIDER, api_key_env="KEY")
    windows = [
        credential_window(A, PROVIDER),
        credential_window(B, PROVIDER),
        credential_window(A, shared),
        credential_window(A, msgspec.structs.replace(shared, api_key_env="KEY_2")),
        credential_window(A, msgspec.structs.replace(shared, base_url="http://elsewhere")),
        credential_window(A, msgspec.structs.replace(PROVIDER, api_key="", headers={"api-key": "1"})),
        credential_window(A, msgspec.structs.replace(PROVIDER, api_key="", headers={"api-key": "2"})),
    ]
    assert all(one != other for one, other in itertools.combinations(windows, 2))
    assert credential_window(B, shared) == credential_window(A, shared)
    assert model_window(B, Route(provider=shared, model="m1")) == model_window(A, Route(provider=shared, model="m1"))
    assert credential_window(A, msgspec.structs.replace(PROVIDER, headers={"X-Team": "blue"})) == credential_window(A, PROVIDER)
