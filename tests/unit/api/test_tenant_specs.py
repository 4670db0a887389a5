import pytest

from app.api.errors import InvalidBodyError
from app.api.tenant_specs import parse_bootstrap, parse_json
from app.domain.errors import InvalidRequestError
from app.domain.model import ApiMode
from app.domain.tenants import ProviderSpec, Purpose, RouteSpec, TenantSettings, TenantSpec

SECRET = "sk-test-AAAA1111BBBB2222CCCC3333"

FILE = """
[[tenants]]
name = "acme"
api_keys = ["env:ACME_KEY"]

  [[tenants.providers]]
  name = "primary"
  api_mode = "chat_completions"
  base_url = "http://127.0.0.1:9001/v1"
  api_key = "env:PRIMARY_KEY"
  headers = { "X-Team" = "blue" }

  [[tenants.chains.chat]]
  provider = "primary"
  model = "m-test"
  context_window = 131072
  output_tokens = 4096
  max_output_tokens = 32768
  prices = { input = 1, cached_input = 0.5, output = 2.0 }

  [tenants.settings]
  max_iterations = 12
"""


def tenant(settings: str) -> str:
    return f'[[tenants]]\nname = "acme"\n{settings}'


def provider(settings: str) -> str:
    return tenant(f'[[tenants.providers]]\nname = "p"\nbase_url = "http://p"\n{settings}')


def route(settings: str) -> str:
    return provider(f'[[tenants.chains.chat]]\nprovider = "p"\nmodel = "m"\n{settings}')


def test_the_documented_file_is_read() -> None:
    (spec,) = parse_bootstrap(FILE)

    assert spec.name == "acme"
    assert spec.api_keys == ("env:ACME_KEY",)
    assert spec.providers == (
        ProviderSpec(name="primary", base_url="http://127.0.0.1:9001/v1", api_key="env:PRIMARY_KEY", headers={"X-Team": "blue"}),
    )
    (only,) = spec.chains[Purpose.CHAT]
    assert (only.provider, only.model, only.stale_timeout_s) == ("primary", "m-test", 90.0)
    assert only.prices is not None
    assert only.prices.input == 1.0
    assert spec.settings == TenantSettings(max_iterations=12)


def test_an_empty_file_has_no_tenants() -> None:
    assert parse_bootstrap("# nothing yet\n") == ()


def test_json_has_the_same_structure() -> None:
    body = b'{"name": "acme", "providers": [{"name": "p", "base_url": "https://p"}], "chains": {"chat": [{"provider": "p", "model": "m"}]}}'

    assert parse_json(body, TenantSpec) == TenantSpec(
        name="acme",
        providers=(ProviderSpec(name="p", base_url="https://p"),),
        chains={Purpose.CHAT: (RouteSpec(provider="p", model="m"),)},
    )


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        pytest.param("tenants = [", "", id="not TOML"),
        pytest.param("tenant = []", "/tenant", id="misspelt table"),
        pytest.param("tenants = 3", "/tenants", id="not a list"),
        pytest.param("[[tenants]]", "/tenants/0", id="no name"),
        pytest.param('[[tenants]]\nname = "Acme Inc"', "/tenants/0/name", id="illegal tenant name"),
        pytest.param('[[tenants]]\nname = "a\\u0000"', "/tenants/0/name", id="NUL in a name"),
        pytest.param(f"{tenant('')}{tenant('')}", "/tenants/1/name", id="same tenant twice"),
        pytest.param(tenant("colour = 1"), "/tenants/0/colour", id="unknown field"),
        pytest.param(tenant('api_keys = ["short"]'), "/tenants/0/api_keys/0", id="short key"),
        pytest.param(tenant('api_keys = ["with a blank in it, long"]'), "/tenants/0/api_keys/0", id="key with blanks"),
        pytest.param(tenant('api_keys = ["env:"]'), "/tenants/0/api_keys/0", id="env without a name"),
        pytest.param(tenant('api_keys = ["env:GATEWAY_ADMIN_KEY"]'), "/tenants/0/api_keys/0", id="the admin key as a tenant's"),
        pytest.param(provider('api_key = "env:GATEWAY_SECRET_KEY"'), "/tenants/0/providers/0/api_key", id="the gateway's own secret"),
        pytest.param(provider('api_key = "two words"'), "/tenants/0/providers/0/api_key", id="illegal credential"),
        pytest.param(provider('api_mode = "telepathy"'), "/tenants/0/providers/0/api_mode", id="unknown API mode"),
        pytest.param(provider("rpm = 0"), "/tenants/0/providers/0/rpm", id="no request a minute"),
        pytest.param(provider("rpm = 1.5"), "/tenants/0/providers/0/rpm", id="half a request"),
        pytest.param(provider("tpm = -1"), "/tenants/0/providers/0/tpm", id="negative tokens a minute"),
        pytest.param(provider("tpm = 1_000_000_001"), "/tenants/0/providers/0/tpm", id="absurd tokens a minute"),
        pytest.param(provider('headers = { "X Y" = "1" }'), "/tenants/0/providers/0/headers", id="illegal header name"),
        pytest.param(provider('headers = { "X-Y" = "1\\r\\nHost: h" }'), "/tenants/0/providers/0/headers/X-Y", id="header injection"),
        pytest.param(provider('headers = { "Content-Length" = "1" }'), "/tenants/0/providers/0/headers/Content-Length", id="transport's"),
        pytest.param(provider('headers = { "X-Y" = 1 }'), "/tenants/0/providers/0/headers/X-Y", id="header not a text"),
        pytest.param(provider('headers = { a = "1", A = "2" }'), "/tenants/0/providers/0/headers/A", id="header twice"),
        pytest.param(
            provider('[[tenants.providers]]\nname = "p"\nbase_url = "http://q"'), "/tenants/0/providers/1/name", id="same provider twice"
        ),
        pytest.param(
            tenant('[[tenants.chains.chat]]\nprovider = "p"\nmodel = "m"'), "/tenants/0/chains/chat/0/provider", id="unknown provider"
        ),
        pytest.param(tenant('[[tenants.chains.chit]]\nprovider = "p"\nmodel = "m"'), "/tenants/0/chains", id="unknown purpose"),
        pytest.param(route('context_window = "big"'), "/tenants/0/chains/chat/0/context_window", id="wrong type in a chain"),
        pytest.param(route("context_window = 99_999_999_999_999_999"), "/tenants/0/chains/chat/0/context_window", id="absurd window"),
        pytest.param(route("context_window = 4096"), "/tenants/0/chains/chat/0/output_tokens", id="no room for input"),
        pytest.param(route("output_tokens = 64_000"), "/tenants/0/chains/chat/0/max_output_tokens", id="maximum below the output"),
        pytest.param(route("stale_timeout_s = nan"), "/tenants/0/chains/chat/0/stale_timeout_s", id="not a number of seconds"),
        pytest.param(route("connect_timeout_s = inf"), "/tenants/0/chains/chat/0/connect_timeout_s", id="endless"),
        pytest.param(route("patience_s = 0"), "/tenants/0/chains/chat/0/patience_s", id="no patience"),
        pytest.param(route("rpm = 0"), "/tenants/0/chains/chat/0/rpm", id="no request of a model a minute"),
        pytest.param(route("tpm = 1_000_000_001"), "/tenants/0/chains/chat/0/tpm", id="absurd tokens of a model a minute"),
        pytest.param(route("patience_s = inf"), "/tenants/0/chains/chat/0/patience_s", id="endless patience"),
        pytest.param(
            route("max_attempts = 0").replace("chains.chat", "chains.vision"),
            "/tenants/0/chains/vision/0/max_attempts",
            id="auxiliary chain",
        ),
        pytest.param(route("max_attempts = 0"), "/tenants/0/chains/chat/0/max_attempts", id="no attempt"),
        pytest.param(
            route("prices = { input = -1, cached_input = 0, output = 0 }"), "/tenants/0/chains/chat/0/prices/input", id="negative price"
        ),
        pytest.param(route("model = ''").replace('model = "m"\n', ""), "/tenants/0/chains/chat/0/model", id="no model"),
        pytest.param(tenant("settings = { max_iterations = 0 }"), "/tenants/0/settings/max_iterations", id="no iteration"),
        pytest.param(tenant("settings = { preflight_threshold = 0.0 }"), "/tenants/0/settings/preflight_threshold", id="threshold of 0"),
        pytest.param(tenant("settings = { preflight_threshold = nan }"), "/tenants/0/settings/preflight_threshold", id="no threshold"),
        pytest.param(tenant("settings = { gateway_threshold = 1.01 }"), "/tenants/0/settings/gateway_threshold", id="above the window"),
        pytest.param(
            tenant("settings = { preflight_threshold = 0.9 }"), "/tenants/0/settings/preflight_threshold", id="thresholds out of order"
        ),
        pytest.param(tenant("settings = { speed = 9 }"), "/tenants/0/settings/speed", id="unknown setting"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, pointer: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_bootstrap(text)

    assert raised.value.pointer == pointer
    assert raised.value.detail.endswith(".")


@pytest.mark.parametrize("api_mode", list(ApiMode))
def test_every_api_mode_is_taken(api_mode: ApiMode) -> None:
    (spec,) = parse_bootstrap(provider(f'api_mode = "{api_mode.value}"'))

    assert spec.providers[0].api_mode is api_mode


def test_another_api_mode_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequestError, match=r"^The api_mode is one of anthropic_messages, chat_completions, responses\.$") as raised:
        parse_bootstrap(provider('api_mode = "telepathy"'))

    assert raised.value.pointer == "/tenants/0/providers/0/api_mode"


def test_thresholds_may_be_equal_and_fill_the_window() -> None:
    (spec,) = parse_bootstrap(tenant("settings = { preflight_threshold = 1, gateway_threshold = 1.0 }"))

    assert (spec.settings.preflight_threshold, spec.settings.gateway_threshold) == (1.0, 1.0)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "p/v1",
        "ftp://p",
        "http://",
        "http://:80",
        "http://user:pw@p",
        "http://p/v1?key=" + SECRET,
        "http://p/#x",
        "http://p:99999",
        "http://p:x",
        "http://[::1",
        "http://p p",
        "http://p\\n",
        "http://p\\\\@q",
    ],
)
def test_an_address_that_cannot_work_or_holds_a_credential_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_bootstrap(tenant(f'[[tenants.providers]]\nname = "p"\nbase_url = "{address}"'))

    assert raised.value.pointer == "/tenants/0/providers/0/base_url"
    assert SECRET[:16] not in raised.value.detail


@pytest.mark.parametrize("address", ["http://127.0.0.1:9001/v1", "https://[::1]:8443", "https://api.example.com/v1/"])
def test_a_plain_address_is_taken(address: str) -> None:
    (spec,) = parse_bootstrap(tenant(f'[[tenants.providers]]\nname = "p"\nbase_url = "{address}"'))

    assert spec.providers[0].base_url == address


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b'{"name": "\\ud800"}', b"[" * 100_000, b'{"name": 1e999}'],
    ids=["empty", "cut", "not UTF-8", "half a character", "deep", "huge number"],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidBodyError) as raised:
        parse_json(body, TenantSpec)

    assert raised.value.code == "invalid_json"


@pytest.mark.parametrize("body", [b"[]", b"null", b'"acme"', b"3"])
def test_json_of_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="Expected `object`"):
        parse_json(body, TenantSpec)
