"""Names that models get wrong: which tool they mean."""

import pytest

from app.agent.names import matches, rightly_named
from app.domain.messages import ToolCall

OFFERED = frozenset({"read_file", "web_search", "send-mail", "delete_user", "delete_users", "listThings"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Read_File", "read_file"),
        ("read-file", "read_file"),
        ("read file", "read_file"),
        ("ReadFile", "read_file"),
        ("read_file_tool", "read_file"),
        ("ReadFileTool_tool", "read_file"),
        ('read_file" path="/etc/passwd', "read_file"),
        ("read_file<|channel|>" + "x" * 500, "read_file"),
        ("send_mail", "send-mail"),
        ("list_things", "listThings"),
        ("read_fil", "read_file"),
        ("web_serach", "web_search"),
    ],
)
def test_a_wrong_name_means_the_tool_that_it_is_like(name: str, meant: str) -> None:
    call = rightly_named(ToolCall("c1", name, '{"a":1}'), OFFERED, known=())
    assert call == ToolCall("c1", meant, '{"a":1}')


@pytest.mark.parametrize("name", ["", " ", "_tool", "no_such_tool", "browser.tabs.open", "x" * 457, "\ud800", "<>"])
def test_a_name_that_is_like_none_means_none(name: str) -> None:
    assert matches(name, OFFERED) == ()


def test_a_name_that_is_like_several_means_none_of_them() -> None:
    assert matches("delet_user", OFFERED) == ("delete_user", "delete_users")
    assert matches("Send-Mail", ["send_mail", "send-mail"]) == ("send-mail", "send_mail")
    call = ToolCall("c1", "delet_user", "{}")
    assert rightly_named(call, OFFERED, known=()) is call


def test_who_calls_a_tool_that_exists_elsewhere_means_no_other() -> None:
    call = ToolCall("c1", "read_files", "{}")
    assert rightly_named(call, OFFERED, known=("read_files",)) is call
    assert rightly_named(call, OFFERED, known=()).name == "read_file"
