import pytest

from app.domain.ids import ProviderId
from app.domain.model import ApiMode, Usage
from app.domain.tenants import Prices, Provider, Route

PROVIDER = Provider(id=ProviderId("prov_1"), name="p", api_mode=ApiMode.CHAT_COMPLETIONS, base_url="http://h/v1", api_key="", headers={})
PRICES = Prices(input=4.0, cached_input=1.0, output=10.0)
MILLION = 1_000_000


@pytest.mark.parametrize(
    ("usage", "cost_usd"),
    [
        pytest.param(Usage(), 0.0, id="nothing"),
        pytest.param(Usage(input_tokens=MILLION), 4.0, id="input"),
        pytest.param(Usage(input_tokens=MILLION, cached_input_tokens=MILLION // 4), 3.25, id="a quarter of the input cached"),
        pytest.param(Usage(input_tokens=MILLION, cached_input_tokens=MILLION), 1.0, id="all cached"),
        pytest.param(Usage(output_tokens=MILLION, reasoning_tokens=MILLION // 2), 10.0, id="reasoning is part of the output"),
        pytest.param(Usage(input_tokens=0, cached_input_tokens=MILLION), 1.0, id="never below nothing"),
    ],
)
def test_cached_tokens_are_part_of_the_input_and_have_their_own_price(usage: Usage, cost_usd: float) -> None:
    assert Route(provider=PROVIDER, model="m", prices=PRICES).cost_usd(usage) == pytest.approx(cost_usd)


def test_without_prices_the_cost_is_unknown_and_not_nothing() -> None:
    assert Route(provider=PROVIDER, model="m").cost_usd(Usage(input_tokens=MILLION)) is None
