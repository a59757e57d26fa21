"""Set-up in other tools' files."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.model.setup import Setup
from shoal.sessions.setup.project import CURSOR, KNOWN, setup_in

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["scripts", "setup", "setup-worktree", "setup-worktree-unix", "run"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


def found(name: str, content: object, *there: str) -> Setup | None:
    return setup_in(name, json.dumps(content).encode(), there.__contains__)


def test_conductors_older_and_newer_file_say_the_same() -> None:
    old = found("conductor.json", {"scripts": {"setup": "npm i", "run": "x", "archive": "y"}, "runScriptMode": "z"})
    new = setup_in(".conductor/settings.toml", b'[scripts]\nsetup = """npm i"""\nrun_mode = "x"\n', lambda _: False)

    assert old is not None
    assert new is not None
    assert old.commands == new.commands == ("npm i",)
    assert list(KNOWN).index(".conductor/settings.toml") < list(KNOWN).index("conductor.json")


@pytest.mark.parametrize("content", [{}, [], None, {"scripts": {}}, {"scripts": {"setup": " "}}, {"scripts": [1]}])
def test_a_file_that_says_nothing_is_none(content: object) -> None:
    assert found("conductor.json", content) is None


def test_of_cursors_keys_the_one_for_this_system_comes_first() -> None:
    said = {"setup-worktree": ["a"], "setup-worktree-unix": ["b", "c"], "setup-worktree-windows": ["d"]}

    assert (setup := found(CURSOR, said)) is not None
    assert setup.commands == ("b", "c")


def test_cursors_text_is_a_script_where_there_is_one_and_else_a_command() -> None:
    script = found(CURSOR, {"setup-worktree": "setup.sh"}, ".cursor/setup.sh")
    command = found(CURSOR, {"setup-worktree": "make"}, ".cursor/setup.sh")

    assert script is not None
    assert command is not None
    assert script.commands == (
        "if [ -x '.cursor/setup.sh' ]; then './.cursor/setup.sh'; else sh '.cursor/setup.sh'; fi",
    )
    assert command.commands == ("make",)


@pytest.mark.parametrize(
    "content", [{"scripts": {"setup": 1}}, {"scripts": {"setup": [1]}}, {"scripts": {"setup": "\0"}}]
)
def test_what_cannot_be_meant_is_refused(content: object) -> None:
    with pytest.raises(BadInput, match=r"conductor\.json: its setup"):
        found("conductor.json", content)


@given(st.sampled_from([name for name in KNOWN if name.endswith(".json")]), JSON)
def test_any_file_is_commands_none_or_refused(name: str, content: object) -> None:
    with contextlib.suppress(BadInput):
        setup = found(name, content, ".cursor/x")
        assert setup is None or (setup.commands and all(one.strip() for one in setup.commands))


@given(st.sampled_from(list(KNOWN)), st.binary(max_size=60))
def test_any_bytes_are_refused_or_read(name: str, content: bytes) -> None:
    with contextlib.suppress(BadInput):
        setup = setup_in(name, content, lambda _: True)
        assert setup is None or setup.source == name
