"""An interrupted client's conversation files are saved as regular files, and nothing else with them."""

import os
from pathlib import Path

import pytest

from shoal.errors import Broken
from shoal.sessions import saved_conversations
from shoal.sessions.saved_conversations import is_valid_name, keep_conversation, leave_out_earlier


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a conversation, and much else in it."""
    talk = tmp_path / "home" / ".client" / "talks" / "project"
    talk.mkdir(parents=True)
    (talk / "1.jsonl").write_text("hello")
    (tmp_path / "home" / ".client" / "settings").write_text("not kept")
    return tmp_path / "home"


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_only_the_conversation_is_kept_and_no_link_is_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    talks = home / ".client" / "talks"
    (talks / "link").symlink_to(tmp_path / "secret")
    (talks / "folder").symlink_to(tmp_path)
    os.mkfifo(talks / "pipe")
    (home / ".other").symlink_to(tmp_path)
    folder = tmp_path / "kept" / "it"

    keep_conversation(home, (".client/talks", ".other/secret", "nothing"), folder)

    assert files(folder) == {".client/talks/project/1.jsonl": "hello"}
    assert [path.name for path in folder.parent.iterdir()] == ["it"]


def test_one_that_is_too_large_leaves_what_was_kept_before(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    keep_conversation(home, (".client/talks",), folder)
    (home / ".client" / "talks" / "more").write_text("much more than that")
    monkeypatch.setattr(saved_conversations, "MAX_BYTES", 10)

    with pytest.raises(Broken, match="more than"):
        keep_conversation(home, (".client/talks",), folder)

    assert files(folder) == {".client/talks/project/1.jsonl": "hello"}


@pytest.mark.parametrize("name", ["--dangerous", "", None, "a b", "a\nb", "../x", "x" * 201])
def test_a_name_that_could_be_an_option_or_a_path_is_not_given_to_a_client(name: str | None) -> None:
    assert not is_valid_name(name)
    assert is_valid_name("ses_7f3A-01.x")


def test_what_was_spent_before_is_left_out_where_a_client_counts_it_again() -> None:
    before = {"input_tokens": 200.0}

    assert leave_out_earlier({"input_tokens": 250}, {"input_tokens": 50}, before) == {"input_tokens": 50}
    assert leave_out_earlier({"input_tokens": 240}, {"input_tokens": 230}, before) == {"input_tokens": 240}
