import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.mcp_names import MAX_NAME, exposed_names, server_of

LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def test_a_legal_name_is_kept() -> None:
    assert exposed_names("box", ["read_file", "b-2"]) == {"read_file": "box__read_file", "b-2": "box__b-2"}


def test_an_illegal_name_becomes_legal_without_a_hash_while_it_is_alone() -> None:
    assert exposed_names("box", ["read.file"]) == {"read.file": "box__read_file"}


def test_names_that_become_the_same_end_with_a_hash_and_the_legal_one_keeps_its_own() -> None:
    names = exposed_names("box", ["a.b", "a b", "a_b"])
    assert names["a_b"] == "box__a_b"
    assert len(set(names.values())) == 3
    assert exposed_names("box", ["a_b", "a b", "a.b"]) == names, "the order of the list does not matter"


def test_a_name_that_is_cut_ends_with_a_hash() -> None:
    names = exposed_names("box", ["x" * 100, "x" * 101, "y" * 59, "z" * 60])
    assert names["y" * 59] == "box__" + "y" * 59
    assert names["z" * 60].startswith("box__zzz")
    assert len(set(names.values())) == 4
    assert all(len(name) <= MAX_NAME for name in names.values())


@given(st.lists(st.text(max_size=80), max_size=30))
def test_every_name_is_legal_its_own_and_the_servers(names: list[str]) -> None:
    exposed = exposed_names("a-box", names)
    assert list(exposed) == list(dict.fromkeys(names))
    assert len(set(exposed.values())) == len(exposed)
    assert all(LEGAL.fullmatch(name) for name in exposed.values())
    assert all(server_of(name) == "a-box" for original, name in exposed.items() if original)


@pytest.mark.parametrize(
    ("name", "server"), [("a__b", "a"), ("a___b", "a"), ("a__b__c", "a"), ("get_time", None), ("__b", None), ("a__", None), ("", None)]
)
def test_the_server_is_what_stands_before_the_first_separator(name: str, server: str | None) -> None:
    assert server_of(name) == server
