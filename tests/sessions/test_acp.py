"""Agents of the Agent Client Protocol: real processes in the real sandbox, with their client outside."""

import asyncio
import importlib
import sys
from pathlib import Path

import pytest

from shoal.adapters.client import this_host
from shoal.errors import Unavailable
from shoal.model.activity import Act
from shoal.model.agent import AgentSpec
from shoal.model.events import AgentActed, Output, PermissionDecided, Recorded
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import Permissions
from shoal.model.plan import Step
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from tests.acting import assert_nothing_left, paths_in, ran, shown

PROGRAM = Path(__file__).with_name("acp_agent.py").read_text()


class Told:
    """Events of a run, and a way to wait for one."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self._more = asyncio.Event()

    def hear(self, one: Recorded) -> None:
        self.events.append(one.event)
        self._more.set()

    async def said(self, text: str) -> None:
        while not any(isinstance(one, Output) and text in one.text for one in self.events):
            self._more.clear()
            await self._more.wait()

    @property
    def acts(self) -> list[tuple[Act, str, str]]:
        return [(Act(one.act), one.tool, one.text) for one in self.events if isinstance(one, AgentActed)]

    @property
    def decisions(self) -> list[tuple[str, str, bool]]:
        return [(one.subject, one.rule, one.allowed) for one in self.events if isinstance(one, PermissionDecided)]


def agent(scenario: str, *, model: str | None = None, **task: object) -> Step:
    """One step whose agent speaks the protocol."""
    command = (str(this_host().python), "-c", PROGRAM, scenario)
    spec = AgentSpec(name="tiny", adapter="acp", command=command, model=model)
    made = ResolvedTask(name="work", prompt="do it", agent=spec, **task)  # type: ignore[arg-type]
    return Step(name="work", workers=1, task=made, on_failure="best_effort")


async def worked(
    repo: Path, scenario: str, told: Told | None = None, *, model: str | None = None, **task: object
) -> WorkerResult:
    """Let the agent take its turn."""
    listen = (told or Told()).hear
    async with asyncio.timeout(60):
        report = await ran(repo, agent(scenario, model=model, **task), listen=listen)
    assert_nothing_left(repo)
    return report.steps[0].worker_results[0]


async def test_a_turn_writes_runs_is_heard_and_counted(repo: Path) -> None:
    told = Told()

    result = await worked(repo, "work", told)

    assert result.status is Status.SUCCEEDED, result
    assert result.output == "I write it.\nThen I run it.\n allow_once\nshell: allow_once\n"
    assert shown(repo, result, "hello.txt") == "do it"
    assert shown(repo, result, "ran.txt") == "ran"
    assert result.usage == {"input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}
    assert result.client_session == "s-1"
    path = f"{result.workspace}/hello.txt"
    assert told.acts == [
        (Act.BEGAN, "", "tiny small"),
        (Act.TOOL, "Plan", "[x] write; [ ] run"),
        (Act.TOOL, "Edit", path),
        (Act.RESULT, "Edit", ""),
        (Act.TOOL, "Bash", "echo ran > ran.txt"),
        (Act.RESULT, "Bash", "done"),
    ]
    assert ("Edit(hello.txt)", "no rule", True) in told.decisions
    assert ("Bash(echo ran > ran.txt)", "no rule", True) in told.decisions


@pytest.mark.parametrize(
    ("permissions", "kept", "denied"),
    [
        (Permissions(deny=("Bash(echo *)",)), {"hello.txt"}, ("Bash(echo ran > ran.txt)", "Bash(echo *)", False)),
        (Permissions(deny=("Write(hello*)",)), {"ran.txt"}, ("Write(hello.txt)", "Write(hello*)", False)),
        (Permissions(allowed_tools=("Edit",)), {"hello.txt"}, ("Bash(echo ran > ran.txt)", "not listed", False)),
        (Permissions(allowed_tools=("Bash(echo:*)",)), {"ran.txt"}, ("Edit(hello.txt)", "not listed", False)),
    ],
)
async def test_rules_are_held_by_our_answers_and_written_down(
    repo: Path, permissions: Permissions, kept: set[str], denied: tuple[str, str, bool]
) -> None:
    told = Told()

    result = await worked(repo, "work", told, permissions=permissions)

    assert result.status is Status.SUCCEEDED, result
    assert paths_in(repo, result) & {"hello.txt", "ran.txt"} == kept
    assert "mode approve" in result.output
    assert denied in told.decisions
    assert [act for act, _, _ in told.acts].count(Act.DENIED) == 1


async def test_who_uses_a_denied_tool_without_asking_has_failed(repo: Path) -> None:
    result = await worked(repo, "unasked", permissions=Permissions(deny=("Bash",)))

    assert (result.status, result.error) == (
        Status.FAILED,
        "it used Bash(echo ran > ran.txt) without asking, against the rule 'Bash'",
    )
    assert (await worked(repo, "unasked", permissions=Permissions(deny=("Read",)))).status is Status.SUCCEEDED


async def test_who_uses_what_it_was_denied_is_ended(repo: Path) -> None:
    result = await worked(repo, "defiant", permissions=Permissions(deny=("Bash",)))

    why = "it used Bash(echo ran > ran.txt) although that was denied, against the rule 'Bash'"
    assert (result.status, result.error) == (Status.FAILED, why)


async def test_the_other_wall_lets_it_be_spoken_with_too(repo: Path) -> None:
    told = Told()
    async with asyncio.timeout(60):
        report = await ran(repo, agent("work"), sandbox="landlock", strategy="worktree", listen=told.hear)

    (result,) = report.steps[0].worker_results
    assert result.status is Status.SUCCEEDED, result
    assert shown(repo, result, "hello.txt") == "do it"


async def test_a_model_is_set_by_the_protocol_or_refused_with_what_there_is(repo: Path) -> None:
    good, bad, none = [
        await worked(repo, scenario, model=model)
        for scenario, model in (("end_turn", "big"), ("end_turn", "huge"), ("prompt", "big"))
    ]

    assert (good.status, good.output) == (Status.NO_CHANGES, "model big\n")
    assert bad.error == "its model cannot be set to 'huge': no such model; it offers small, big"
    assert none.error == ("its model cannot be set to 'big' by the protocol; name it in its command or its `env`")


async def test_who_leaves_at_once_after_its_turn_has_ended_well(repo: Path) -> None:
    result = await worked(repo, "hasty")

    assert (result.status, result.output, result.exit_code) == (Status.NO_CHANGES, "bye\n", 3)


async def test_last_words_are_heard_of_who_leaves_in_the_middle(repo: Path) -> None:
    result = await worked(repo, "cut off")

    assert (result.output, result.error) == ("a last wo\n", "it exited with 0 before its turn was over")


async def test_a_system_prompt_stands_before_the_task(repo: Path) -> None:
    result = await worked(repo, "prompt", system_prompt="You are a poet.")

    assert result.output == (
        "# Your instructions, which take precedence over the task\n\nYou are a poet.\n\n# Your task\n\ndo it\n"
    )


@pytest.mark.parametrize(
    ("scenario", "error"),
    [
        ("max_tokens", "its model ran out of tokens (max_tokens)"),
        ("max_turn_requests", "it reached its limit of model requests in one turn (max_turn_requests)"),
        ("refusal", "its model refused to go on (refusal)"),
        ("cancelled", "it reports that it was cancelled, but nobody cancelled it (cancelled)"),
        ("of_its_own", "its answer does not follow the protocol: "),
        ("lie", "Ran into this error: the model is gone."),
        ("exit", "it exited with 7 before its turn was over: cannot find my brain"),
        ("garbage", "stdout is not the Agent Client Protocol: this is no message xxx"),
        ("questions", "it keeps sending requests without reading the answers"),
        ("version", "it uses version 7 of the Agent Client Protocol, but Shoal uses version 1"),
        ("login", "it is not logged in: Authentication required; log in to it, or hand it a key by `env: "),
        ("formless", "its answer does not follow the protocol: "),
    ],
)
async def test_an_end_that_is_not_good_is_a_failure_that_says_why(repo: Path, scenario: str, error: str) -> None:
    result = await worked(repo, scenario)

    assert result.status is Status.FAILED
    assert (result.error or "").startswith(error), result.error


async def test_who_is_stopped_is_asked_to_end_its_turn_and_its_work_is_kept(repo: Path) -> None:
    stop, told = asyncio.Event(), Told()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(ran(repo, agent("wait"), stop=stop, listen=told.hear))
        await told.said("waiting")
        stop.set()

    (result,) = running.result().steps[0].worker_results
    assert result.status is Status.CANCELLED, result
    assert paths_in(repo, result) & {"half.txt", "late.txt"} == {"half.txt"}
    assert (Act.TOOL, "Edit", f"{result.workspace}/late.txt") in told.acts  # it had heard that its turn is over
    assert_nothing_left(repo)


async def test_who_does_not_hear_that_it_is_stopped_is_ended_with_all_it_started(repo: Path) -> None:
    stop, told = asyncio.Event(), Told()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(ran(repo, agent("deaf"), stop=stop, listen=told.hear))
        await told.said("deaf")
        stop.set()

    assert running.result().steps[0].worker_results[0].status is Status.CANCELLED
    assert _alive("sleep\x004712") == []
    assert_nothing_left(repo)


async def test_time_and_silence_end_an_agent(repo: Path) -> None:
    late = await worked(repo, "wait", timeout=1.5)
    hung = await worked(repo, "hang", stall_timeout=1)

    assert (late.status, late.limit) == (Status.TIMED_OUT, "time")
    assert shown(repo, late, "half.txt") == "half"
    assert (hung.status, hung.error) == (Status.FAILED, "it hung: no output and no activity for 1 s")


def test_without_the_protocols_sdk_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "shoal.sessions.acp.turn", raising=False)
    monkeypatch.setitem(sys.modules, "acp", None)

    with pytest.raises(Unavailable, match=r"pip install 'shoal\[acp\]'"):
        importlib.import_module("shoal.sessions.acp.turn")


async def test_limits_hold_as_for_any_agent(repo: Path) -> None:
    result = await worked(repo, "huge", limits=ResourceLimits(memory_mb=16))

    assert (result.status, result.limit) == (Status.OVER_LIMIT, "memory")


async def test_hostile_lines_are_passed_over(repo: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = Told()

    result = await worked(repo, "bytes", told)

    assert (result.status, result.output) == (Status.NO_CHANGES, "terminal: None, file: -32601\n"), result
    assert [text for act, _, text in told.acts if act is Act.TROUBLE][1:3] == [
        "not a message of the protocol: [1]",
        "not a message of the protocol: null",
    ]
    assert capfd.readouterr().err == ""  # no traceback of a library, with an agent's bytes in it


async def test_a_huge_line_is_left_out_and_told(repo: Path) -> None:
    told = Told()

    result = await worked(repo, "huge", told)

    assert (result.status, result.output) == (Status.NO_CHANGES, "still here\n")
    assert any(act is Act.TROUBLE and "too long to read" in text for act, _, text in told.acts)


async def test_many_updates_all_arrive(repo: Path) -> None:
    told = Told()

    result = await worked(repo, "many", told)

    said = "\n".join(one.text for one in told.events if isinstance(one, Output))
    assert result.status is Status.NO_CHANGES
    assert [line for line in said.splitlines() if line.startswith("word")] == [f"word {n}" for n in range(3000)]


async def test_secrets_are_masked_in_words_tools_and_decisions(repo: Path) -> None:
    told = Told()

    result = await worked(repo, "secret", told, env={"TOKEN": "s3cret-token"}, secrets=frozenset({"TOKEN"}))

    assert result.status is Status.NO_CHANGES, result
    assert "s3cret" not in result.output
    assert "s3cret-token" not in repr(told.events)
    assert any(subject.startswith("Bash(echo ") for subject, _, _ in told.decisions)


def _alive(words: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [entry.parent.name] if words in entry.read_text() else []
        except OSError:
            continue
    return found
