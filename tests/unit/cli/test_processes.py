import socket
from contextlib import closing

import pytest

from app.cli.errors import CommandError
from app.cli.processes import bind, url_of


def test_a_free_port_is_taken_for_port_zero() -> None:
    with closing(bind("127.0.0.1", 0)) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_the_address_for_all_interfaces_is_shown_as_one_to_try() -> None:
    with closing(bind("0.0.0.0", 0)) as listener:
        assert url_of(listener) == f"http://localhost:{listener.getsockname()[1]}"


def test_a_port_in_use_is_an_error_that_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(CommandError, match="--port"):
        bind("127.0.0.1", other.getsockname()[1])


def test_an_address_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(CommandError, match="Cannot listen"):
        bind("192.0.2.1", 8000)
