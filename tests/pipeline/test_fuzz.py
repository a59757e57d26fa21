"""Whatever the text, the reader raises only our errors, each with its position, and quickly."""

import contextlib
import json
import time
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.pipeline.keys.script import script
from shoal.pipeline.load import Document, load, parse
from shoal.pipeline.plan import plan
from shoal.pipeline.problems import BadDocument
from shoal.pipeline.tree import plain
from shoal.pipeline.yaml_reader import MAX_BYTES, compose

GOOD = """\
runtime: {max_concurrent_workers: 2, isolation_strategy: auto, cleanup_on_complete: true}
agents:
  x: &x {adapter: command, command: ["sh", "-c", 'a "b"'], network: none, timeout: 1h30m, env: {A: 1, B: {from: C}}}
  y:
    adapter: scripted
    script:
      - write:
          path: a
          content: |-
            b
      - {run: ls, ignore_failure: true}
      - {sleep: 0.5}
      - {exit: 3}
  z: *x
personas: {p: {agent: x, system_prompt: "Be\\u00e9."}}
pipelines:
  - name: one
    steps:
      - name: implement
        persona: p
        prompt: >
          hi
        concurrency: 3
        on_failure: best_effort
  - {name: two, steps: [{id: b, agent: y, exec: {source: "x"}}]}
"""
RICH = """\
runtime: {resource_limits: {memory_mb: 100, disk: exact}, fleet_limits: {max_memory: 1000}, network: none}
agents:
  x: {adapter: command, command: make, limits: {pids: 5}, permissions: {writable: [README.md], env: [C]}}
  s: {adapter: scripted, script: [{write: {path: a, content: b}}, {run: [ls]}, {say: hi}]}
  m: {adapter: python, model: scripted, tools: [read], budget: {turns: 3}, replies: [hi, {read: {path: a}}]}
personas: {p: {agent: x, system_prompt: Be short., env: {A: 1, B: {from: C}}, timeout: 10m}}
pipelines:
  - name: one
    steps:
      - name: plan
        persona: p
        prompt: "Plan {{ input }}"
        retry: {policy: standard, max_attempts: 2}
        output_artifacts: [{name: plan, path: plan.json, type: json}]
      - name: go
        needs: [plan]
        agent: s
        prompt: "{{ artifacts.plan.plan }} {{ worker.index }}"
        concurrency: 2
        on_failure: {quorum: 1}
        inject_artifacts: [{step: plan, artifact: plan, as: what}]
        if: steps.plan.status == 'succeeded'
        select: {by: [command, diff_size], command: make test}
        vary: [{prompt: Be bold.}, {env: {A: b}}]
        contracts: [{type: test_suite, command: [make]}, {type: json_schema, path: a.json, schema: {type: object}}]
      - {name: ask, needs: go, gate: {message: Ship it?, timeout: 1h}}
      - {name: test, needs: ask, command: make test, optional: true, base: run, sandbox: none}
      - name: grid
        agent: s
        prompt: "{{ matrix.os }}"
        strategy: {matrix: {os: [a, b], v: [1, 2], exclude: [{os: a, v: 1}], include: [{os: c}]}, max-parallel: 2}
      - {name: items, needs: plan, agent: s, prompt: "{{ item }}", strategy: {items_source: plan/plan.json, item_key: a.b}}
      - {name: again, needs: [test], pipeline: two, input: {a: "{{ input }}"}, loop: {until: "true", max: 3}}
  - {name: two, steps: [{id: b, agent: m, exec: {source: "{{ input.a }}"}, expect: changes}]}
"""
TOKENS = [
    *"[]{}:,-?*&!|>'\"%@`#~<\n\t\0\r \ufeff\u2028\ud800\x85",
    "\n  ",
    "- ",
    ": ",
    "---\n",
    "...\n",
    "!!int ",
    "<<: ",
]
WORDS = [
    "*x",
    "&x ",
    "null",
    "no",
    "0x",
    "1e999",
    ".nan",
    "-1",
    "9" * 30,
    "steps",
    "name",
    "agent",
    '"\\U',
    "%YAML 1.1\n",
]
VALUES = [
    *("null", "~", "true", "no", "''", "[]", "{}", "[[]]", "{a: {b: c}}", "[1, x, {}]", ".nan", ".inf", "-.inf"),
    *("0", "-1", "1.5", "1e999", "-1e999", "1e-999", "9" * 400, "9" * 5000, "0x" + "f" * 200, "0o7", "1_000"),
    *("2026-11-16", "2026-11-16T10:00:00Z", "12:30:45", "=", "<<", "{<<: {a: b}}", "&a x", "*a", "&a [*a]"),
    *("!!python/object:os.system x", "!!binary aGk=", "!!set {a, b}", "!!timestamp 2001-01-01", "!x y", "!!int '3'"),
    *(
        "{? [a] : b}",
        "{1: 2}",
        "{null: 1}",
        "? x",
        "'{{ input }}'",
        "'{{ '",
        "'{% for a in b %}'",
        "'{{ x.__class__ }}'",
    ),
    *("'\\u202e'", '"\\0"', '"\\ud800"', '"\\U0010ffff"', "'\U0001f41f'", "a" * 5000, "'" + "é" * 70 + "'"),
    *(
        "[" * 60 + "]" * 60,
        "{a: " * 60 + "b" + "}" * 60,
        "[" * 3000,
        "'{{ " + "(" * 300 + "'",
        "'" + "not " * 999 + "x'",
    ),
    *("one", "two", "x", "plan", "go", "../../etc/passwd", "/etc/passwd", "-rf", "HEAD", "a_b", "A B", "implement"),
]
KEYS = ["name", "id", "needs", "if", "loop", "env", "steps", "pipeline", "strategy", "contract", "x", "<<", "1", "''"]

# Where the whole file is meant, there is no place to name.
OF_THE_FILE = ("larger than 1 MiB",)
INPUT = {"a": "b"}
LONGEST_SECONDS = 10.0
BOUNDED = settings(max_examples=250, deadline=None, database=None, suppress_health_check=list(HealthCheck))
LONG = settings(BOUNDED, max_examples=400)


def read(text: str) -> None:
    """Plan every pipeline of *text*; how long that takes is counted in our own time, whatever else runs here."""
    began = time.process_time()
    with refused():
        for name in _pipelines(document := parse(text, "f.yaml")):
            with refused():
                plan(document, name, environ={"C": "c"}, given=INPUT)
    assert time.process_time() - began < LONGEST_SECONDS


def read_script(text: str) -> None:
    with refused():
        script(text, "f.yaml")


def _pipelines(document: Document) -> list[str | None]:
    return [one.name for one in document.shape.pipelines or ()] or [None]


class refused(contextlib.AbstractContextManager[None]):
    """Let errors of ours pass, where they say where."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, BadInput):
            return False
        assert isinstance(error, BadDocument), error
        assert all(one.at or one.what.startswith(OF_THE_FILE) for one in error.problems), error
        assert all(line.isprintable() for line in str(error).split("\n")), error
        return True


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A good document with some pieces cut out, put in or doubled."""
    text = draw(st.sampled_from([GOOD, RICH]))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        piece = draw(st.sampled_from([*TOKENS, *WORDS, text[start:end] * 2, ""]))
        text = text[:start] + piece + text[end:]
    return text


@dataclass
class Branch:
    """A mapping or a list that can be changed: its *entries* are pairs, of which a list shows only the second part."""

    is_mapping: bool
    entries: list[tuple[str, "Branch | str"]]

    def __str__(self) -> str:
        inside = ", ".join(f"{key}: {value}" if self.is_mapping else str(value) for key, value in self.entries)
        return f"{{{inside}}}" if self.is_mapping else f"[{inside}]"


def grown(value: object) -> Branch | str:
    match value:
        case dict():
            return Branch(True, [(str(key), grown(one)) for key, one in value.items()])
        case list():
            return Branch(False, [("", grown(one)) for one in value])
        case str():
            return json.dumps(value)
        case _:
            return str(value).lower()


def branches(branch: Branch) -> list[Branch]:
    below = [one for _, value in branch.entries if isinstance(value, Branch) for one in branches(value)]
    return [branch, *below]


@st.composite
def restructured(draw: st.DrawFn) -> str:
    """A good document with keys left out, doubled, renamed, moved and given other values."""
    tree = grown(plain(compose(RICH, "f.yaml").tree))
    assert isinstance(tree, Branch)
    values = st.sampled_from(VALUES) | st.text(max_size=20).map(lambda text: "'" + text.replace("'", "''") + "'")
    for _ in range(draw(st.integers(1, 3))):
        branch = draw(st.sampled_from([one for one in branches(tree) if one.entries] or [tree]))
        if not branch.entries:
            break
        index = draw(st.integers(0, len(branch.entries) - 1))
        key, value = branch.entries[index]
        match draw(st.sampled_from(["delete", "double", "rename", "retype", "insert", "move"])):
            case "delete":
                del branch.entries[index]
            case "double":
                branch.entries.append((key, value))
            case "rename":
                branch.entries[index] = (draw(st.sampled_from([*KEYS, f"{key}s"])), value)
            case "retype":
                branch.entries[index] = (key, draw(values))
            case "insert":
                branch.entries.append((draw(st.sampled_from(KEYS)), draw(values)))
            case _:
                other = draw(st.sampled_from(branches(tree)))
                other.entries.append((key, str(value)))
    return str(tree)


@pytest.mark.parametrize("text", [GOOD, RICH], ids=["GOOD", "RICH"])
def test_the_good_documents_are_good(text: str) -> None:
    assert plan(parse(text, "f.yaml"), "one", environ={"C": "c"}, given=INPUT).steps
    assert parse(str(grown(plain(compose(text, "f.yaml").tree))), "f.yaml").shape == parse(text, "f.yaml").shape


@pytest.mark.deep
@pytest.mark.parametrize("value", ["[[]]", "{x: []}"])
def test_a_list_and_a_mapping_are_read_or_refused_at_every_place(value: str) -> None:
    """Neither has a hash, so that a validator that looks it up in a table would raise."""
    tree = grown(plain(compose(RICH, "f.yaml").tree))
    assert isinstance(tree, Branch)

    for branch in branches(tree):
        for index, entry in enumerate(branch.entries):
            branch.entries[index] = (entry[0], value)
            read(str(tree))
            branch.entries[index] = entry


@BOUNDED
@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    read(text)
    read_script(text)


@BOUNDED
@given(st.lists(st.sampled_from([*TOKENS, *WORDS]), max_size=40).map("".join))
def test_any_row_of_yaml_signs_is_read_or_refused(text: str) -> None:
    read(text)
    read_script(text)


@settings(BOUNDED, max_examples=50)
@given(mutated() | restructured())
def test_a_good_document_that_was_damaged_is_read_or_refused(text: str) -> None:
    read(text)


@pytest.mark.deep
@LONG
@given(mutated())
def test_any_damage_to_the_text_is_read_or_refused(text: str) -> None:
    read(text)


@pytest.mark.deep
@LONG
@given(restructured())
def test_any_damage_to_the_structure_is_read_or_refused(text: str) -> None:
    read(text)


@pytest.mark.deep
@settings(LONG, max_examples=2000)
@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_in_a_file_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    file.write_bytes(content)

    with refused():
        load(file)


@pytest.mark.deep
@pytest.mark.parametrize(
    "text",
    [
        "steps: [" + "{name: a}, " * 20_000 + "]",
        "steps:\n" + "- {name: a, agent: x, prompt: y, needs: [b]}\n" * 4_000,
        "steps:\n" + "".join(f"- {{name: s{one}, agnt: x, needs: [s{one + 1}]}}\n" for one in range(1_500)),
        "steps:\n"
        + "- {name: s0, command: x, output_artifacts: [a.json]}\n"
        + "".join(
            f"- {{name: s{one}, command: 'echo {{{{ steps.s0.output }}}}', needs: [s{one - 1}]}}\n"
            for one in range(1, 2_000)
        ),
        "steps:\n"
        + "- {name: s0, command: x, output_artifacts: [a.json]}\n"
        + "".join(
            f"- {{name: s{one}, command: x, needs: s0, strategy: {{items_source: s0.a}}, output_artifacts: [a.json]}}\n"
            for one in range(1, 1_500)
        ),
        "pipelines:\n" + "".join(f"- {{name: p{one}, steps: [{{pipeline: p{one + 1}}}]}}\n" for one in range(2_000)),
        "agents: {" + ", ".join(f"a{one}: {{adapter: comand}}" for one in range(4_000)) + "}",
        "a: " + "'" + "x" * (MAX_BYTES - 10) + "'",
        "? " * 5_000,
        "- " * 5_000,
        "{" * 5_000,
        "!" * 50_000,
        "a: &" + "x" * 100_000,
        "".join(f"a{one}: &a{one} [{', '.join([f'*a{one - 1}'] * 9) if one else 'x'}]\n" for one in range(12)),
        "steps: [{name: a, agent: x, prompt: '" + "{{ input }}" * 10_000 + "'}]",
        "steps: [{name: a, agent: x, prompt: '{{ " + "[" * 5_000 + "'}]",
        "steps: [{name: a, agent: x, if: '" + "(" * 5_000 + "'}]",
        "steps: [{name: a, agent: x, if: '" + "a." * 5_000 + "b'}]",
        "steps: [{name: a, agent: x, prompt: y, if: '" + "9" * 5_000 + "'}]",
        "steps: [{name: a, agent: x, prompt: y, if: '9**9**9**9'}]",
        "steps: [{name: a, agent: x, prompt: '{{ " + "9" * 5_000 + " }}'}]",
        "steps: [{name: a, agent: x, prompt: \"{{ 'x' * 999999999 }}\"}]",
    ],
    ids=lambda text: text[:40],
)
def test_what_is_large_is_read_or_refused_soon(text: str) -> None:
    read(text)
