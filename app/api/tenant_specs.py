"""Reads tenants' configuration: the bootstrap file (TOML) and bodies of the admin API (JSON) into the one structure of both.

Nothing is read from a file or stored here. Errors name the place and never repeat a value.
"""

import re
import tomllib
from typing import Any, TypeVar

import msgspec

from app.api.errors import FieldError, InvalidBodyError
from app.domain.errors import InvalidRequestError
from app.domain.model import ApiMode
from app.domain.tenant_rules import check_spec
from app.domain.tenants import TenantSpec

Shape = TypeVar("Shape", bound=msgspec.Struct)

_PLACE = re.compile(r" - at (?:`key` in )?`\$(?P<path>.*)`$")
_STEP = re.compile(r"\.(?P<name>[A-Za-z_][A-Za-z0-9_]*)|\[(?P<index>\d+)\]|\[\.\.\.\]")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MAX_DETAIL = 200
_OTHER_API_MODE = "The api_mode is one of " + ", ".join(sorted(ApiMode))


class _Bootstrap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: tuple[TenantSpec, ...] = ()


def parse_bootstrap(text: str) -> tuple[TenantSpec, ...]:
    """The tenants of a bootstrap file's text. Raises InvalidRequestError, its pointer into the file (``/tenants/0/providers/1/name``)."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequestError(f"The text is not TOML: {error}.") from None
    tenants = _convert(document, _Bootstrap).tenants
    names: set[str] = set()
    for index, spec in enumerate(tenants):
        check_spec(spec, f"/tenants/{index}")
        if spec.name in names:
            raise InvalidRequestError(f"There are two tenants named {spec.name}.", pointer=f"/tenants/{index}/name")
        names.add(spec.name)
    return tenants


def parse_json(body: bytes, shape: type[Shape]) -> Shape:
    """A JSON body as ``shape``.

    Raises InvalidBodyError (``invalid_json``) for what is not JSON, else InvalidRequestError with a pointer into the body.
    """
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidBodyError("invalid_json", (FieldError("", "The body is not valid JSON, or nested too deeply."),)) from None
    return _convert(document, shape)


def _convert(document: Any, shape: type[Shape]) -> Shape:
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise _invalid(error, document) from None


def _invalid(error: msgspec.ValidationError, document: Any) -> InvalidRequestError:
    """msgspec's ``Expected `int`, got `str` - at `$.providers[0].name``` with its path as a JSON pointer into ``document``."""
    message = str(error)
    found = _PLACE.search(message)
    detail = message if found is None else message[: found.start()]
    pointer = _pointer("" if found is None else found["path"], document)
    if detail.startswith("Invalid enum value") and pointer.endswith("/api_mode"):
        detail = _OTHER_API_MODE
    unknown = _UNKNOWN_FIELD.fullmatch(detail)
    if unknown is not None:
        pointer += "/" + unknown["name"].replace("~", "~0").replace("/", "~1")
    return InvalidRequestError(f"{detail[:_MAX_DETAIL]}.", pointer=pointer)


def _pointer(path: str, document: Any) -> str:
    """``.chains[...][0].model`` as ``/chains/chat/0/model``. The key of a mapping is told by no path: it is clear when there is but one."""
    pointer = ""
    for step in _STEP.finditer(path):
        key = step["name"] or step["index"]
        if key is None:
            mapping = _at(document, pointer)
            if not isinstance(mapping, dict) or len(mapping) != 1:
                return pointer
            key = str(next(iter(mapping))).replace("~", "~0").replace("/", "~1")
        pointer += f"/{key}"
    return pointer


def _at(document: Any, pointer: str) -> Any:
    found = document
    for key in pointer.split("/")[1:]:
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found
