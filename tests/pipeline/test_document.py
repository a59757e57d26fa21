"""Shape and meaning of whole documents: every mistake at its line and column."""

from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.pipeline.load import load, parse
from shoal.pipeline.problems import BadDocument

AGENT = 'agents: {x: {adapter: command, command: ["true"]}}\n'


def wrong(text: str) -> list[str]:
    with pytest.raises(BadDocument) as caught:
        parse(text, "f.yaml")
    return str(caught.value).splitlines()


def in_step(keys: str) -> list[str]:
    """What is wrong with a good step that also has *keys*, which start at column 36 of line 3."""
    return wrong(f"{AGENT}steps:\n  - {{name: a, agent: x, prompt: x, {keys}}}\n")


def in_runtime(keys: str) -> list[str]:
    return wrong(f"{AGENT}runtime: {{{keys}}}\nsteps: [{{name: a, agent: x, prompt: x}}]\n")


def in_agents(keys: str) -> list[str]:
    return wrong(f"agents:\n  x: {{{keys}}}\nsteps: [{{name: a, agent: x, prompt: x}}]\n")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("concurency: 3", "3:36: unknown key `concurency`; did you mean `concurrency`?"),
        ("<<: {a: 1}", "3:36: merge keys (`<<`) are not read; write the values out"),
        ("concurrency: -1", "3:49: `concurrency` must be at least 1, not -1"),
        ("concurrency: 0", "3:49: `concurrency` must be at least 1, not 0"),
        ("concurrency: 0.5", "3:49: `concurrency` must be a whole number, not 0.5"),
        ('concurrency: "many"', "3:49: `concurrency` must be a whole number, not 'many'"),
        ("concurrency: true", "3:49: `concurrency` must be a whole number, not true"),
        ("concurrency: ~", "3:49: `concurrency` must be a whole number, not nothing"),
        ("max_concurrent_agents: x", "3:59: `max_concurrent_agents` must be a whole number, not 'x'"),
        ("network: hots", "3:45: `network` cannot be 'hots'; did you mean `host`?"),
        ("network: 3", "3:45: `network` must be text, not 3; put it in quotes"),
        ("expect: change", "3:44: `expect` cannot be 'change'; did you mean `changes`?"),
        ("on_failure: [any]", "3:48: `on_failure` cannot be a list; use fail_fast, best_effort, any or {quorum: n}"),
        (
            "retry: {policy: [standard]}",
            "3:52: retry: `policy` cannot be ['standard']; use none, standard, aggressive, patient",
        ),
        (
            "on_failure: {quorum: 1000000}",
            "3:48: `on_failure` as a mapping is `{quorum: n}`, with a whole number, at least 1 and at most 999999",
        ),
        ("on_failure: failfast", "3:48: `on_failure` cannot be 'failfast'; did you mean `fail_fast`?"),
        (
            "limits: {a: 1}",
            "3:45: limit `a` is not known; known: cpu_percent, disk, disk_mb, memory_mb, pids, time_seconds",
        ),
        ("limits: {disk: exakt}", "3:51: limit `disk` must be `polled` or `exact`, not 'exakt'"),
        (
            "limits: {disk: exact, disk_mb: ~}",
            "3:51: limit `disk` is exact, which needs a size: give `disk_mb` too",
        ),
        ("persona: y", "3:45: no persona named 'y'; known: none"),
        ("id: b", "3:36: both `name` and `id` are given; keep one of them"),
        ("exec: {source: y}", "3:36: both `prompt` and `exec` are given; keep one of them"),
        ("env: [1]", "3:41: `env` must be a mapping, not a list"),
        ("env: {A: {from: a-b}}", "3:45: `a-b` is not a valid variable name; use letters, digits and `_`"),
        ("env: {'a b': 1}", "3:42: `a b` is not a valid variable name; use letters, digits and `_`"),
    ],
)
def test_a_mistake_in_a_step_is_told_with_its_place(keys: str, expected: str) -> None:
    assert in_step(keys) == [f"f.yaml:{expected}"]


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("Do {{ inptu }}", "3:19"),
        ("'Do {{ inptu }}'", "3:20"),
        ("|\n      Do\n\n        {{ inptu }}", "6:12"),
        ("|2-\n        {{ inptu }}\r", "4:12"),
        ("&it !!str |\n      {% if input %}\n      {{ inptu }}\n      {% endif %}", "5:10"),
        ("|\n      Do\n      {{ input | inptu }}", "5:7"),
        ("'It''s {{ inptu }}'", "3:13"),
        (">\n      Do\n      {{ inptu }}", "3:13"),
        ("Do\n      {{ inptu }}", "3:13"),
    ],
)
def test_what_is_wrong_in_a_text_is_told_at_its_place_in_the_file(written: str, place: str) -> None:
    """Where the lines of the text are not those of the file, the place of the text has to do."""
    (line,) = wrong(f"{AGENT}steps:\n  - prompt: {written}\n    name: a\n    agent: x\n")

    assert line.startswith(f"f.yaml:{place}: no ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{AGENT}steps: [{{name: a, agnt: x, prompt: y}}]\n", "2:19: unknown key `agnt`; did you mean `agent`?"),
        (f"{AGENT}steps: [{{nmae: a, agent: x, prompt: y}}]\n", "2:10: unknown key `nmae`; did you mean `name`?"),
        ("agents: {x: {adaptor: command, command: make}}\n", "1:14: unknown key `adaptor`; did you mean `adapter`?"),
        ("agents: {x: {adapter: command, comand: make}}\n", "1:32: unknown key `comand`; did you mean `command`?"),
    ],
)
def test_a_key_that_is_misspelt_is_not_missing_too(text: str, expected: str) -> None:
    assert wrong(text) == [f"f.yaml:{expected}"]


@pytest.mark.parametrize(
    "text", ["agents:\n  x:\n\nsteps: [{name: a, agent: x, prompt: x}]\n", "agents:\n  x: # later\n"]
)
def test_a_value_that_was_left_out_is_told_at_its_key(text: str) -> None:
    assert wrong(text) == ["f.yaml:2:3: `x` must be a mapping, not nothing"]


@pytest.mark.parametrize(
    ("keys", "start"),
    [
        ("timeout: 5x", "3:45: '5x' is not a duration"),
        ("timeout: .nan", "3:45: nan is not a duration"),
        ("timeout: -1", "3:45: -1 is not a duration"),
        ("timeout: []", "3:45: [] is not a duration"),
        ("timeout: true", "3:45: True is not a duration"),
        ("env: {A: ~}", "3:45: a variable must be text"),
        ("env: {A: {form: X}}", "3:45: a variable must be text"),
        ("env: {SHOAL_RUN: x}", "3:42: `SHOAL_RUN` is set by Shoal itself"),
    ],
)
def test_a_long_message_starts_with_its_place(keys: str, start: str) -> None:
    (line,) = in_step(keys)

    assert line.startswith(f"f.yaml:{start}")


def test_every_mistake_in_an_environment_is_told_at_once() -> None:
    assert in_step("env: {A B: x, SHOAL_RUN: y, C: [1]}") == [
        "f.yaml:3:42: `A B` is not a valid variable name; use letters, digits and `_`",
        "f.yaml:3:50: `SHOAL_RUN` is set by Shoal itself; choose a name that does not start with SHOAL_",
        "f.yaml:3:67: a variable must be text, a number, true, false or {from: HOST_NAME}, not a list",
    ]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("max_concurrent_workers: 0", "2:35: `max_concurrent_workers` must be at least 1, not 0"),
        ("max_concurrent_workers: 1001", "2:35: `max_concurrent_workers` must be at most 1000, not 1001"),
        ("isolation_strategy: overlai", "2:31: `isolation_strategy` cannot be 'overlai'; did you mean `overlay`?"),
        (
            "database_strategy: shard",
            "2:30: `database_strategy` cannot be 'shard'; did you mean `shared`?",
        ),
        (
            "database: 'postgresql://me:word@db/x'",
            "2:21: a password does not belong in a file; put the address in a variable: `{from: HOST_NAME}`",
        ),
        (
            "store: {repository: a}",
            "2:18: `store` is an address, or `{from: HOST_NAME}`, or `{url: ADDRESS}`, with `repository: NAME`",
        ),
        (
            "store: {from: LEDGER, repository: a/b}",
            "2:18: `repository` cannot be 'a/b'; use letters, digits, `.`, `_` and `-`",
        ),
        (
            "database: mysql://db/x",
            "2:21: 'mysql://db/x' is not a server; write `postgresql://user@host/name` or `{from: NAME}`",
        ),
        ("cleanup_on_complete: no", "2:32: `cleanup_on_complete` must be true or false, not 'no'"),
        ("merge: sqash", "2:18: `merge` cannot be 'sqash'; did you mean `squash`?"),
        ("sandbox: bublewrap", "2:20: `sandbox` cannot be 'bublewrap'; did you mean `bubblewrap`?"),
        ("toolchains: [tools]", "2:24: 'tools' is not an absolute path on the host; start it with `/` or `~/`"),
        ("toolchains: [/a, ~b]", "2:28: '~b' is not an absolute path on the host; start it with `/` or `~/`"),
        (
            "toolchains: [/a/../b]",
            "2:24: '/a/../b' is not an absolute path on the host; start it with `/` or `~/`",
        ),
        ("toolchains: ['/a:b']", "2:24: '/a:b' cannot be on PATH, because it contains `:`; rename the folder"),
        (
            "resource_limits: {memory_mb: 1}",
            "2:40: limit `memory_mb` must be a number from 16 to 1073741824, or null for no bound, not 1",
        ),
        (
            "fleet_limits: {disk: exact}",
            "2:32: `disk: exact` gives each agent a disk of its own; say it in `resource_limits` or `limits`",
        ),
    ],
)
def test_a_mistake_in_the_runtime_is_told_with_its_place(keys: str, expected: str) -> None:
    assert in_runtime(keys) == [f"f.yaml:{expected}"]


@pytest.mark.parametrize(
    ("keys", "start"),
    [
        ("adapter: comand", "2:16: `adapter` cannot be 'comand'; did you mean `command`?"),
        ("adapter: claud", "2:16: `adapter` cannot be 'claud'; did you mean `claude`?"),
        ("adapter: acp", "2:6: `command` is missing; say which agent to run, like [goose, acp]"),
        ("adapter: codex, script: [{say: x}]", "2:23: `script` goes with `adapter: scripted` only; remove it"),
        ("command: [a]", "2:6: `adapter` is missing; add it"),
        ("adapter: command", "2:6: `command` is missing; say what to run"),
        ("adapter: command, command: []", "2:34: the command is empty"),
        ("adapter: command, command: ''", "2:34: the command is empty"),
        ("adapter: command, command: [a, 3]", "2:38: an item of `command` must be text, not 3; put it in quotes"),
        ('adapter: command, command: "a \'b"', "2:34: the command cannot be split into words"),
        ("adapter: command, command: [a], script: []", "2:39: `script` goes with `adapter: scripted` only"),
        ("adapter: scripted", "2:6: `script` or `script_file` is missing"),
        ("adapter: scripted, script: [{slep: 2}]", "2:36: unknown key `slep`; did you mean `sleep`?"),
        ("adapter: scripted, script: [{}]", "2:35: no action in one item; give exactly one of write,"),
        ("adapter: scripted, script: [{say: a, run: b}]", "2:35: `run` and `say` in one item"),
        ("adapter: scripted, script: [{say: a, ignore_failure: true}]", "2:35: `ignore_failure` with `say`"),
        ("adapter: scripted, script: [{exit: 256}]", "2:42: `exit` must be at most 255, not 256"),
        ("adapter: scripted, script: [{sleep: .inf}]", "2:43: `sleep` must be"),
        ("adapter: scripted, script: [{write: {path: a}}]", "2:43: `content` is missing"),
        ("adapter: scripted, script: [{delete: ''}]", "2:44: the path is empty"),
        ("adapter: scripted, script_file: a.yaml", "2:39: `script_file`: 'a.yaml' cannot be read"),
    ],
)
def test_a_mistake_in_an_agent_is_told_with_its_place(keys: str, start: str) -> None:
    assert in_agents(keys)[-1].startswith(f"f.yaml:{start}")


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("../../x", "x"),
        ("/abs", "abs"),
        (".", "step"),
        ("", "step"),
        ("a\\nb", "a-b"),
        ("$(id)", "id"),
        (";rm", "rm"),
        ("\\u202e", "step"),
        ("x.lock", "x-lock"),
        ("Fix Login!", "fix-login"),
        ("-D", "d"),
        ("n" * 300, "n" * 48),
    ],
)
def test_a_bad_step_name_is_refused_and_a_slug_proposed(name: str, proposed: str) -> None:
    (line,) = wrong(f'{AGENT}steps: [{{name: "{name}", agent: x, prompt: x}}]')

    assert line.startswith("f.yaml:2:16: ")
    assert line.endswith(f"use `{proposed}`")


def test_names_of_agents_personas_and_pipelines_follow_the_rule() -> None:
    text = (
        "agents: {A: {adapter: command, command: a}}\npersonas: {B_: {agent: A}}\n"
        "pipelines: [{name: 'c d', steps: [{name: s, persona: B_, prompt: x}]}]"
    )

    assert [line.split(" (")[0] for line in wrong(text)] == [
        "f.yaml:1:10: 'A' is not a valid agent name",
        "f.yaml:2:12: 'B_' is not a valid persona name",
        "f.yaml:3:20: 'c d' is not a valid pipeline name",
    ]


@pytest.mark.parametrize("second", ["a", "A"])
def test_names_that_differ_in_case_only_are_duplicates(second: str) -> None:
    text = f"{AGENT}steps:\n  - {{name: a, agent: x, prompt: x}}\n  - {{id: {second}, agent: x, prompt: x}}\n"

    assert any("4:10: a second step named" in line and "line 3" in line for line in wrong(text))


def test_a_step_that_is_aliased_twice_is_a_duplicate() -> None:
    (line,) = wrong(f"{AGENT}steps: [&s {{name: a, agent: x, prompt: x}}, *s]")

    assert "a second step named 'a'" in line


def test_concurrency_and_matrix_exclude_each_other() -> None:
    text = f"{AGENT}pipelines:\n  - name: my-pipeline\n    steps:\n      - name: implement\n        agent: x\n"
    keys = "        prompt: hi\n        concurrency: 2\n        strategy: {matrix: {k: [1, 2]}}\n"

    (first,) = wrong(text + keys)

    what = "`concurrency` and `strategy.matrix` (line 9, column 20) exclude each other; keep one of them"
    assert first == f"f.yaml:8:9: {what}"


def test_all_problems_of_all_kinds_come_at_once() -> None:
    text = "agents: {}\nagents: {}\nsteps:\n  - name: A\n    concurency: 3\n    agent: y\n"

    assert [line.split(": ", 1)[1].split(";")[0] for line in wrong(text)] == [
        "`agents` is given twice, first in line 1, column 1",
        "`prompt` or `exec` is missing",
        "'A' is not a valid step name (small letters, digits and dashes, at most 48)",
        "unknown key `concurency`",
        "no agent named 'y'",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1]", "f.yaml:1:1: the top level must be a mapping; start with `steps:`"),
        ("steps: []", "f.yaml:1:8: `steps` is empty; write at least one"),
        ("pipelines: [{name: a, steps: []}]", "f.yaml:1:30: `steps` is empty; write at least one"),
        ("steps: 3", "f.yaml:1:8: `steps` must be a list, not 3"),
        ("steps: [3]", "f.yaml:1:9: an item of `steps` must be a mapping, not 3"),
        ("stepz: []", "f.yaml:1:1: unknown key `stepz`; did you mean `steps`?"),
        (
            f"{AGENT}personas: {{p: {{}}}}\nsteps: [{{name: a, prompt: b, persona: p}}]",
            "f.yaml:3:30: neither the step nor its persona `p` names an agent; add `agent`",
        ),
        (
            f"{AGENT}steps: [{{name: a, agent: x, prompt: ' '}}]",
            "f.yaml:2:37: the prompt is empty; say what the agent is to do",
        ),
        (
            f"{AGENT}steps: [{{name: a, agent: x, prompt: a}}]\npipelines: []",
            "f.yaml:3:1: both `steps` and `pipelines` are given; keep one of them",
        ),
    ],
)
def test_a_mistake_in_the_whole_is_told_with_its_place(text: str, expected: str) -> None:
    assert expected in wrong(text)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("loop.round == 1", "no name `loop` here"),
        ("this.status == 'failed'", "no name `this` here"),
        ("steps.one.status == 'failed'", "no step named `one`"),
    ],
)
def test_what_a_round_comes_to_can_be_named_after_it_and_not_before(condition: str, expected: str) -> None:
    """`until` is asked after each round, and `if` once, before the first."""
    text = """\
pipelines:
- {{name: inner, steps: [{{name: one, command: 'true'}}]}}
- name: main
  steps: [{{name: a, pipeline: inner, if: "{if_}", loop: {{until: "{until}"}}}}]
"""

    assert parse(text.format(if_="true", until=condition), "f.yaml")
    with pytest.raises(BadDocument, match=expected):
        parse(text.format(if_=condition, until="true"), "f.yaml")


def test_load_reads_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "role.md").write_text("\ufeffBe kind.\n")
    (tmp_path / "acts.yaml").write_text("- say: hello\n- run: [ls]\n  ignore_failure: true\n- exit: 0\n")
    path = tmp_path / "shoal.yaml"
    agents = "agents: {x: {adapter: scripted, script_file: acts.yaml}}\n"
    path.write_text(f"{agents}personas: {{p: {{agent: x, system_prompt_file: role.md}}}}\n")

    document = load(path)

    assert document.system_prompts == {"p": "Be kind.\n"}
    assert document.scripts == {"x": '[{"say":"hello"},{"ignore_failure":true,"run":["ls"]},{"exit":0}]'}


def test_a_mistake_in_a_script_file_is_told_with_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "acts.yaml").write_text("- say: hello\n- rum: ls\n")
    path = tmp_path / "shoal.yaml"
    path.write_text("agents: {x: {adapter: scripted, script_file: acts.yaml}}\n")

    with pytest.raises(BadDocument, match=r"acts\.yaml:2:3: unknown key `rum`; did you mean `run`\?"):
        load(path)


def test_the_names_in_a_system_prompt_file_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "role.md").write_text("You are number {{ wroker.index }}.\n")
    path = tmp_path / "p.yaml"
    persona = "personas: {p: {agent: x, system_prompt_file: role.md}}\n"
    path.write_text(f"{AGENT}{persona}steps: [{{name: a, persona: p, prompt: x}}]\n")

    with pytest.raises(BadDocument) as caught:
        load(path)

    assert str(caught.value) == f"{path}:2:46: no name `wroker` here; did you mean `worker`?"


@pytest.mark.parametrize("kind", ["missing", "folder", "large", "latin"])
def test_a_system_prompt_file_that_cannot_be_used_is_told_at_its_place(tmp_path: Path, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_text("x" * (256 * 1024 + 1))
    (tmp_path / "latin").write_bytes(b"ok\nab\xe9")
    path = tmp_path / "shoal.yaml"
    path.write_text(f"{AGENT}personas: {{p: {{agent: x, system_prompt_file: {kind}}}}}\n")

    with pytest.raises(BadDocument) as caught:
        load(path)

    place = f"{tmp_path / 'latin'}:2:3: not UTF-8" if kind == "latin" else f"{path}:2:46: `system_prompt_file`: "
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a: 1\nb: \xc3(\n", b"x" * (1024 * 1024 + 1), b"a: \0", b""])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_bytes(content)

    with pytest.raises(BadDocument, match=r"shoal\.yaml"):
        load(path)


@pytest.mark.parametrize("path", [Path("/nowhere/x.yaml"), Path("/dev/zero"), Path("/"), Path("a\0b")])
def test_a_path_that_is_no_file_is_bad_input(path: Path) -> None:
    with pytest.raises(BadInput):
        load(path)
