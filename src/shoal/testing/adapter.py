"""The contract of adapters as tests, for authors of adapters: subclass `AdapterContract` and let pytest run it.

    from shoal.testing.adapter import AdapterContract

    class TestMine(AdapterContract):
        adapter = Mine()
        ending = ['{"type": "done"}']   # lines with which your client reports that it is done

An adapter is pure: it runs nothing, reads nothing and remembers nothing. A client's output is never trusted.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import ClassVar

from shoal.adapters.kind import Adapter, Invocation, Reader, SessionPaths
from shoal.errors import Unavailable
from shoal.model.activity import Activity
from shoal.model.agent import AgentSpec
from shoal.model.resolved_task import ResolvedTask

PLACE = SessionPaths(
    home=Path("/box/own/home"), inputs=Path("/box/input"), workspace=Path("/repo/.shoal/workspaces/r/s/worker_0")
)
PROMPT = "Write the word ärger into a file.\nThen stop."
PERSONA = "You are a careful implementer.\n\nYou may spawn up to 3 concurrent sub-agents or workers for this step."
LONGEST_WORD = 128 * 1024  # the longest argument on Linux
LONG = "x" * (LONGEST_WORD * 2)
NAMES_OF_COST = {"input_tokens", "output_tokens", "cost_usd"}
HOSTILE = (
    "",
    " ",
    "null",
    "[]",
    "{}",
    "{",
    '{"type": null}',
    '{"type": {"type": "result"}}',
    '{"type": "result", "usage": "much", "is_error": []}',
    '{"type": "message", "message": {"content": [null, 1, {"type": []}]}}',
    '{"type": "error", "error": 7}',
    '{"usage": {"input_tokens": 1e999, "output_tokens": -5}}',
    '{"event": "\\ud800", "part": {"tokens": {"input": true}}}',
    "[" * 100_000,
    '{"a":' * 100_000,
    "\x1b]0;title\x07 and \x00",
)
EFFECTS = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "socket.", "os.remove", "os.mkdir", "os.listdir")


class AdapterContract:
    """What must hold for every adapter; each test is one sentence of the contract."""

    adapter: ClassVar[Adapter]
    ending: ClassVar[Sequence[str]] = ()
    """Lines with which the client reports that it is done; without them, that is not tested."""
    spec: ClassVar[AgentSpec] = AgentSpec(name="x", adapter="x")
    """The agent as a document describes it; if it needs a command or a script, add it here."""
    takes_system_prompt: ClassVar[bool] = True
    takes_model: ClassVar[bool] = True

    def test_it_has_a_name(self) -> None:
        """A document uses it."""
        assert self.adapter.name.isidentifier() or self.adapter.name.replace("-", "_").isidentifier()

    def test_its_client_can_be_installed_and_logged_in_to(self) -> None:
        """Without the client, one line says what to run."""
        if (client := self.adapter.client) is not None:
            assert client.program
            assert "\n" not in client.install + client.login
            assert client.install
            assert client.login or not client.needs_login

    def test_the_same_task_gives_the_same_command(self) -> None:
        """It remembers nothing, and does not depend on chance or the clock."""
        assert self._make_invocation() == self._make_invocation()

    def test_it_touches_nothing(self) -> None:
        """It runs no program, opens no connection and changes no file."""
        with _watched() as effects:
            self._make_invocation()
            self.adapter.reader()
        assert effects == []

    def test_the_prompt_reaches_the_client(self) -> None:
        """It is in stdin, in an argument, in a file of its home, or in the named file of the prompt."""
        made = self._make_invocation()
        assert _reaches(made, PROMPT, PLACE.prompt_file)

    def test_a_long_prompt_is_no_argument(self) -> None:
        """The kernel refuses an argument of 128 KiB; a system prompt may be refused in words."""
        try:
            made = self._make_invocation(prompt=LONG, system_prompt=LONG)
        except Unavailable:
            made = self._make_invocation(prompt=LONG)
        assert all(len(word.encode()) < LONGEST_WORD for word in made.argv)
        assert all(len(value.encode()) < LONGEST_WORD for value in made.env.values())

    def test_the_system_prompt_reaches_the_client(self) -> None:
        """It contains the persona, and the hint about how many helpers it may start."""
        if self.takes_system_prompt:
            assert _reaches(self._make_invocation(), PERSONA, PLACE.system_prompt_file)

    def test_a_model_is_named_where_one_is_asked_for(self) -> None:
        """It reaches the client, and is absent unless requested."""
        if self.takes_model:
            asked = self._make_invocation(spec=replace(self.spec, model="model-of-mine"))
            assert _reaches(asked, "model-of-mine", Path("/nowhere"))
            assert not _reaches(self._make_invocation(), "model-of-mine", Path("/nowhere"))

    def test_its_files_stay_in_the_private_home(self) -> None:
        """They are named from the home's top and never leave it."""
        for name in self._make_invocation().home:
            path = PurePosixPath(name)
            assert not path.is_absolute()
            assert ".." not in path.parts

    def test_no_line_breaks_the_reader(self) -> None:
        """An agent can write anything."""
        if (reader := self.adapter.reader()) is not None:
            for line in HOSTILE:
                assert all(isinstance(activity, Activity) for activity in reader.read(line))
            _assert_sane(reader)

    def test_each_session_has_its_own_reader(self) -> None:
        """One client's output does not affect another."""
        first, second = self.adapter.reader(), self.adapter.reader()
        assert first is None or first is not second

    def test_silence_is_no_success(self) -> None:
        """An exit code alone is never trusted."""
        if (reader := self.adapter.reader()) is not None:
            assert reader.verdict(0, "")
            assert reader.verdict(1, "boom")
            assert reader.verdict(None, "")

    def test_its_own_end_is_success(self) -> None:
        """A client that reported its end has done its work, and may exit slowly."""
        reader = self.adapter.reader()
        if reader is not None and self.ending:
            for line in self.ending:
                list(reader.read(line))
            assert reader.is_done
            assert reader.verdict(0, "") is None
            _assert_sane(reader)

    def _make_invocation(
        self, prompt: str = PROMPT, system_prompt: str = PERSONA, spec: AgentSpec | None = None
    ) -> Invocation:
        task = ResolvedTask(name="t", prompt=prompt, system_prompt=system_prompt, agent=spec or self.spec)
        return self.adapter.invocation(task, PLACE)


def _reaches(made: Invocation, text: str, file: Path) -> bool:
    """Return whether *text* is passed in any way, or the *file* that contains it is named."""
    words = [*made.argv, *made.env.values()]
    contents = [made.stdin, *made.home.values()]
    is_told = any(text in word for word in words) or any(text.encode() in content for content in contents)
    escaped = (text.replace("\n", "\\n").encode(), json.dumps(text)[1:-1].encode())
    is_escaped = any(form in content for content in contents for form in escaped)
    is_named = any(str(file) in word for word in words) or any(str(file).encode() in content for content in contents)
    return is_told or is_escaped or is_named


def _assert_sane(reader: Reader) -> None:
    usage = dict(reader.usage)
    assert set(usage) <= NAMES_OF_COST
    assert all(0 <= value < float("inf") for value in usage.values())


_effects: list[list[str]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _effects and event.startswith(EFFECTS):
        _effects[-1].append(f"{event} {arguments!r:.100}")


_hooked: list[bool] = []


@contextmanager
def _watched() -> Iterator[list[str]]:
    """Record what touches the outside; an audit hook can never be removed, so there is only one."""
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked.append(True)
    _effects.append([])
    try:
        yield _effects[-1]
    finally:
        _effects.pop()
