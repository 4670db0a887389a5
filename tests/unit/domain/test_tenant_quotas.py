import math
from typing import Any

import pytest

from app.domain.errors import InvalidRequestError
from app.domain.tenant_rules import check_spec
from app.domain.tenants import TenantSettings, TenantSpec


def spec(**settings: Any) -> TenantSpec:
    return TenantSpec(name="acme", settings=TenantSettings(**settings))


def test_a_tenant_has_no_quotas_unless_it_is_given_some() -> None:
    assert not TenantSettings().limits_turns
    check_spec(spec())


@pytest.mark.parametrize(
    "settings",
    [
        {"requests_per_minute": 1},
        {"max_concurrent_turns": 1},
        {"tokens_per_day": 1},
        {"cost_usd_per_day": 0.000_001},
        {"requests_per_minute": 600, "max_concurrent_turns": 50, "tokens_per_day": 10_000_000, "cost_usd_per_day": 25.0},
    ],
    ids="+".join,
)
def test_each_quota_limits_the_tenants_turns(settings: dict[str, Any]) -> None:
    assert TenantSettings(**settings).limits_turns
    check_spec(spec(**settings))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("requests_per_minute", 0),
        ("requests_per_minute", 1_000_000_001),
        ("max_concurrent_turns", 0),
        ("max_concurrent_turns", -1),
        ("tokens_per_day", 0),
        ("tokens_per_day", 10**15),
        ("cost_usd_per_day", 0.0),
        ("cost_usd_per_day", -1.0),
        ("cost_usd_per_day", math.inf),
        ("cost_usd_per_day", math.nan),
    ],
)
def test_a_quota_that_cannot_work_is_refused_at_its_place(name: str, value: float) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_spec(spec(**{name: value}))
    assert caught.value.pointer == f"/settings/{name}"
