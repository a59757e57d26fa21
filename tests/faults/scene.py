"""Runs that are killed and resumed: a pipeline, what its agents left outside, and the outcome."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from shoal.model.events import AgentStarted, Event, Output, Recorded, SessionEnded, SessionStarted
from shoal.store.fold import fold, report
from shoal.store.paths import StatePaths
from shoal.store.reader import list_runs, read_events, read_session, store_at
from tests.cli.conftest import environment
from tests.cli.flows import written
from tests.conftest import git, make_repo
from tests.faults.points import Kill, Launch

# Each agent writes a file of its own, which is the same whenever it starts, and a note that is different each time.
WORK = """\
me=$SHOAL_STEP-$SHOAL_WORKER_INDEX; echo $me >> "$OUTSIDE/starts"
mkdir -p notes; echo "$SHOAL_SESSION was here" > notes/$SHOAL_SESSION; echo $SHOAL_SESSION >> "$OUTSIDE/wrote" || echo noted
echo "by $me" > $me.txt
eval "$(head -n 1 "$SHOAL_PROMPT_FILE")" """
RUNTIME = "sandbox: none, network: host, max_concurrent_workers: 4"
VARIANTS = {
    "bubblewrap": "max_concurrent_workers: 4",
    "set-up": "max_concurrent_workers: 4, setup: ['mkdir -p deps && echo done > deps/ready']",
    "exact disk": "max_concurrent_workers: 4, resource_limits: {disk: exact, disk_mb: 64}",
    "worktree": f"{RUNTIME}, isolation_strategy: worktree, setup: ['mkdir -p deps && echo done > deps/ready']",
    "directory": f"{RUNTIME}, isolation_strategy: directory",
}
"""Runs of three tasks whose agents have different sandboxes and workspaces."""

TWELVE_TASKS = """\
steps:
  - {name: plan, agent: work, prompt: "true"}
  - {name: many, agent: work, needs: [plan], prompt: "true", concurrency: 3, on_failure: best_effort}
  - {name: again, agent: work, needs: [plan], prompt: "[ $(grep -c again $OUTSIDE/starts) -ge 2 ]", retry: {max_attempts: 9}}
  - {name: cells, agent: work, needs: [plan], prompt: "true", strategy: {matrix: {k: [a, b]}}}
  - {name: checked, agent: work, needs: [plan], prompt: "true", contract: {type: command, command: "test -e checked-0.txt"}}
  - {name: ask, gate: {message: "go on?"}, needs: [plan]}
  - {name: rounds, agent: work, needs: [ask], prompt: "echo x > round-{{ loop.round }}.txt", loop: {until: "loop.round == 2", max: 3}}
  - {name: best, agent: work, needs: [plan], prompt: "seq $((99 * SHOAL_WORKER_INDEX)) > seq-$SHOAL_WORKER_INDEX.txt", concurrency: 2, select: {by: diff_size}}
  - {name: last, agent: work, needs: [again, cells, checked, rounds, best], prompt: "true"}
"""
THREE_TASKS = """\
steps:
  - {name: plan, agent: work, prompt: "echo 1 > a.json", output_artifacts: [{name: a, path: a.json}]}
  - {name: many, agent: work, needs: [plan], prompt: "true", concurrency: 2, on_failure: best_effort}
  - {name: idle, agent: idle, needs: [plan], prompt: "true", concurrency: 2, on_failure: best_effort}
  - {name: last, agent: work, needs: [many, idle], prompt: "true"}
"""
FOUR_TASKS = """\
steps:
  - {name: plan, agent: work, prompt: "true"}
  - {name: ask, gate: {message: "go on?"}, needs: [plan]}
  - {name: many, agent: work, needs: [ask], prompt: "true", concurrency: 2, on_failure: best_effort}
  - {name: last, agent: work, needs: [plan, ask], prompt: "[ $(grep -c last $OUTSIDE/starts) -ge 2 ]", retry: {max_attempts: 9}}
"""
DELIVERED = "merge: {strategy: squash, into: main, verify: 'test -e last-0.txt || true'}"


E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, without what may differ between two runs of the same plan."""

    code: int
    statuses: Mapping[str, str]
    workers: Mapping[str, tuple[str, ...]]
    merge: tuple[tuple[str, str], ...]
    tree: frozenset[str]
    landed: int


@dataclass(frozen=True)
class Printed:
    """An event that a command printed, and so acknowledged."""

    seq: int
    kind: str
    session: str | None


@dataclass
class Scene:
    """A repository with a pipeline in it; commands are started one after the other, and some of them are killed."""

    repo: Path
    outside: Path
    words: tuple[str, ...]
    base: str = ""
    commands: int = 0
    running_at_kills: int = 0
    printed: list["Printed"] = field(default_factory=list)

    @property
    def paths(self) -> StatePaths:
        return StatePaths.of(self.repo)

    def start(self, *words: str, kill: Kill | None = None) -> int:
        """Run a command to its end, or until it dies; remember what it acknowledged."""
        launch = self.launch(*words, kill=kill)
        code = launch.run()
        self.note_end(launch, code)
        return code

    def launch(self, *words: str, kill: Kill | None = None, at: float | None = None) -> Launch:
        self.commands += 1
        place = self.outside / f"command-{self.commands}"
        passed, said = place.with_suffix(".passed"), place.with_suffix(".said")
        return Launch(words, self.repo, environment(), passed, said, kill, at)

    def note_end(self, launch: Launch, code: int) -> None:
        """Remember what *launch* acknowledged, and how many agents ran when it was killed."""
        self.printed += _acknowledged(launch.said)
        if code == -9:
            self.running_at_kills += len(unended(self.paths))

    def go_on(self, kill: Kill | None = None) -> int:
        """Resume the run as its user would; start it where nothing of it had been recorded."""
        if self.has_plan():
            return self.start("resume", "--events", kill=kill)
        return self.start(*self.words, kill=kill)

    def settle(self) -> int:
        """Resume the run to its end, and clean up, which is a start after the last kill."""
        code = self.go_on()
        cleaned = self.start("clean")
        assert cleaned == 0, self.said()
        return code

    def has_plan(self) -> bool:
        return any(store_at(self.paths).read_plan(run) for run in list_runs(self.paths)[:1])

    def outcome(self, code: int) -> Outcome:
        run = list(fold(read_events(self.paths)).runs.values())[-1]
        steps = [step for step in report(run).steps if "__" not in step.step]
        merge = () if run.merge is None else run.merge.results
        names = git(self.repo, "ls-tree", "-r", "main").splitlines()
        return Outcome(
            code=code,
            statuses={step.step: step.status.value for step in steps},
            workers={step.step: tuple(str(result.status.value) for result in step.worker_results) for step in steps},
            merge=tuple(sorted((result.session.rsplit("-", 1)[0], result.status.value) for result in merge)),
            tree=frozenset(line for line in names if "\tnotes/" not in line),
            landed=int(git(self.repo, "rev-list", "--count", f"{self.base}..main")),
        )

    def starts(self) -> Counter[str]:
        """Count how often each agent started; one in a sandbox cannot write that down outside, but its log says so."""
        if (file := self.outside / "starts").exists():
            return Counter(file.read_text().split())
        starts = [event for event in map(_event, read_events(self.paths)) if isinstance(event, SessionStarted)]
        working = [start for start in starts if "__" not in start.step and self._logged(AgentStarted, start.session)]
        return Counter(f"{start.step}-{start.index}" for start in working)

    def wrote(self) -> list[str]:
        """List the sessions whose agents wrote their notes."""
        if (file := self.outside / "wrote").exists():
            return file.read_text().split()
        names = [log.stem for log in self.paths.sessions.glob("*.db")]
        return [name for name in names if any("noted" in output.text for output in self._logged(Output, name))]

    def _logged(self, kind: type[E], session: str) -> list[E]:
        return [event for event in map(_event, read_session(self.paths, session)) if isinstance(event, kind)]

    def passed(self) -> list[str]:
        """List the points that the last command passed, in order."""
        return [line.partition("\t")[0] for line in self._lines()]

    def sites(self) -> set[str]:
        """List the functions of ours that passed a point of the last command."""
        return {line.partition("\t")[2] for line in self._lines()}

    def _lines(self) -> list[str]:
        return (self.outside / f"command-{self.commands}.passed").read_text().splitlines()

    def said(self) -> str:
        """Give what the last command printed, for a failing test to show."""
        return "".join(path.read_text()[-2000:] for path in self.outside.glob(f"command-{self.commands}.said*"))


def make_scene(folder: Path, steps: str = TWELVE_TASKS, *, runtime: str = RUNTIME, merge: str = DELIVERED) -> Scene:
    """Make a repository with a pipeline of *steps* in it."""
    folder.mkdir(parents=True)
    repo, outside = make_repo(folder / "repo"), folder / "outside"
    outside.mkdir()
    script = f'OUTSIDE="{outside}"; export OUTSIDE; {WORK}'
    written(repo, steps, runtime=f"{runtime}, {merge}" if merge else runtime, work=script, idle="true")
    (repo / ".git" / "info" / "exclude").write_text("p.yaml\n")
    return Scene(repo, outside, ("run", "p.yaml", "--events"), base=git(repo, "rev-parse", "HEAD"))


def unended(paths: StatePaths) -> list[SessionStarted]:
    """List the sessions that have begun and not ended."""
    if not paths.ledger.exists():
        return []
    events = [recorded.event for recorded in read_events(paths)]
    ended = {event.session for event in events if isinstance(event, SessionEnded)}
    return [event for event in events if isinstance(event, SessionStarted) and event.session not in ended]


def _event(recorded: Recorded) -> Event:
    return recorded.event


def _acknowledged(said: Path) -> Iterator[Printed]:
    """Give each event that a command printed; its last line may have been cut off."""
    for line in said.read_text().splitlines():
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if "seq" in event:
            yield Printed(event["seq"], event["event"], event.get("session"))
