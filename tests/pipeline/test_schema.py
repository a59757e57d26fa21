"""The schema for editors says what `shoal validate` says, as far as a schema can."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jsonschema_rs
import pytest
from pydantic.json_schema import JsonSchemaValue

from scripts import reference
from shoal.errors import BadInput
from shoal.pipeline.editor_schema import schema as made
from shoal.pipeline.editor_schema.values import TAKES
from shoal.pipeline.load import parse
from shoal.pipeline.tree import plain
from shoal.pipeline.yaml_reader import compose

ROOT = Path(__file__).parents[2]
AGENT = "agents: {x: {adapter: command, command: [make]}}\n"
STEP = AGENT + "steps:\n  - name: a\n    agent: x\n    prompt: go\n    "


@cache
def validator() -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(made.schema())


def is_valid(text: str) -> bool:
    return validator().is_valid(plain(compose(text, "f.yaml").tree))


def is_accepted(text: str) -> bool:
    try:
        parse(text, "f.yaml", read=lambda file, most: b"- {say: hello}\n")
    except BadInput:
        return False
    return True


def texts() -> Iterator[str]:
    """Every text in the docs, the examples and the tests that could be a document."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")):
        yield from re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for file in (*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("src/**/*.yaml")):
        yield file.read_text()
    for program in (ROOT / "tests").glob("**/*.py"):
        for node in ast.walk(ast.parse(program.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "agents:" in node.value:
                yield node.value


@pytest.mark.deep
def test_whatever_the_loader_accepts_is_valid() -> None:
    accepted = [text for text in set(texts()) if is_accepted(text)]

    assert len(accepted) >= 20
    assert [text for text in accepted if not is_valid(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        STEP + "expect: changes\n",
        STEP + "limits: {max_memory: 64, pids: null, disk: exact}\n    retry: 2\n",
        STEP + "retry: {policy: patient, max_attempts: 5}\n    on_failure: {quorum: 2}\n    concurrency: 3\n",
        STEP + "env: {A: 1, B: yes, C: {from: HOME}, D: true, E: 1.5}\n    timeout: 1 h 30 m\n    needs: []\n",
        STEP + "permissions: {deny: ['Bash(rm *)'], writable: []}\n    base: HEAD~1\n    optional: true\n",
        AGENT + "steps: [{id: a, name: null, agent: x, exec: {type: prompt, source: go}, depends_on: null}]\n",
        AGENT.replace("[make]", "make -j 2") + "pipelines: [{name: p, steps: [{id: a, agent: x, prompt: go}]}]\n",
        "agents: {x: {adapter: scripted, script: [{run: ls, ignore_failure: true}, {sleep: 1}, {exit: 0}]}}\n",
        "agents: {x: {adapter: python, model: scripted, replies: [hi, {read: {path: a}}, [{list: {}}]], tools: []}}\n",
        STEP + "if: true\n    loop: {until: 'true', max: 2}\n    output_artifacts: [a.txt, {path: b.json, name: b}]\n",
        STEP + "contract: {type: json_schema, path: a, schema: {type: object}}\n    sandbox: none\n",
        STEP + "strategy: {matrix: {os: [a, b], include: [{os: c}]}, max-parallel: 1, fail-fast: false}\n",
        STEP + "concurrency: 2\n    vary: [{prompt: a}, {}]\n    select: {by: diff_size}\n",
        STEP + "concurrency: 2\n    vary: {prompt: [a, b]}\n    select: {by: [command], command: [make]}\n",
        "steps: [{name: a, gate: Ship it?}, {name: b, gate: {message: Go?, timeout: 1h}, needs: a}]\n",
        "steps: [{name: a, command: make}, {name: b, command: [make, test], needs: [a], isolation_strategy: directory}]\n",
        "agents: {x: {adapter: command, command: true}}\nsteps: [{name: a, command: true}, {name: b, command: [false]}]\n",
        "runtime: {merge: {strategy: auto, verify: true}}\nsteps: [{name: a, command: make}]\n",
        AGENT + "pipelines: [{name: p, steps: [{name: a, pipeline: q, input: {x: 1}}]}, "
        "{name: q, steps: [{name: a, agent: x, prompt: go}]}]\n",
        "runtime: {fleet_limits: {memory_mb: 100}, resource_limits: {disk: exact}, auto_merge: false}\n",
    ],
)
def test_what_is_right_is_right_for_both(text: str) -> None:
    assert is_accepted(text)
    assert is_valid(text)


@pytest.mark.parametrize(
    "text",
    [
        STEP + "concurency: 3\n",
        STEP + "concurrency: 0\n",
        STEP + "concurrency: three\n",
        STEP + "concurrency: 1.5\n",
        STEP + "concurrency: true\n",
        STEP + "on_failure: ignore\n",
        STEP + "on_failure: {quorum: 0}\n",
        STEP + "on_failure: {quorum: 1000000}\n",
        STEP + "expect: nothing\n",
        STEP + "timeout: soon\n",
        STEP + "timeout: -1\n",
        STEP + "retry: often\n",
        STEP + "retry: {attempts: 3}\n",
        STEP + "limits: {memory: 3}\n",
        STEP + "limits: {memory_mb: 1}\n",
        STEP + "resource_limits: {memory_mb: 100}\n",
        STEP + "env: {1A: x}\n",
        STEP + "env: {SHOAL_RUN: x}\n",
        STEP + "env: {A: [x]}\n",
        STEP + "env: {A: {form: HOME}}\n",
        STEP + "env: {A: {from: a-b}}\n",
        STEP + "network: internet\n",
        STEP + "needs: {b: c}\n",
        STEP + "optional: 'yes'\n",
        STEP + "permissions: {deny: 'rm'}\n",
        STEP + "if: [a]\n",
        STEP + "loop: 3\n",
        STEP + "loop: {max: 3}\n",
        STEP + "loop: {until: a, max: 0}\n",
        STEP + "contract: {type: unknown}\n",
        STEP + "contract: {typ: command}\n",
        STEP + "output_artifacts: [{name: a}]\n",
        STEP + "strategy: {matrix: {os: a}}\n",
        STEP + "strategy: {matrx: {os: [a]}}\n",
        STEP + "concurrency: 2\n    vary: [{colour: red}]\n",
        STEP + "concurrency: 2\n    select: {by: speed}\n",
        STEP + "concurrency: 2\n    select: {by: [diff_size, speed]}\n",
        STEP + "sandbox: docker\n",
        "steps: [{name: a, gate: {question: Ship it?}}]\n",
        "steps: [{name: a, command: 3}]\n",
        STEP.replace("name: a", "name: A b"),
        STEP + "\npipelines: []\n",
        AGENT + "steps: []\n",
        AGENT + "steps: 3\n",
        AGENT + "step: []\n",
        AGENT + "pipelines: [{steps: [{name: a, agent: x, prompt: go}]}]\n",
        AGENT.replace("command: [make]", "command: []"),
        AGENT.replace("adapter: command", "adapter: comand"),
        AGENT.replace("{x:", "{X_Y:"),
        "agents: {x: {adapter: scripted, script: [{run: ''}]}}\n",
        "agents: {x: {adapter: scripted, script: [{write: {path: a}}]}}\n",
        "agents: {x: {adapter: python, model: scripted, replies: [{fly: {}}]}}\n",
        "agents: {x: {adapter: python, model: a, tools: [fly]}}\n",
        "runtime: {max_concurrent_workers: 0}\n",
        "runtime: {sandbox: docker}\n",
        "runtime: {merge: 3}\n",
        "runtime: {merge: sqash}\n",
        "runtime: {database_strategy: shard}\n",
        "runtime: {database_strategy: shared, database: [3]}\n",
        "runtime: {fleet_limits: {disk: exact}}\n",
        "- steps\n",
    ],
)
def test_a_common_mistake_is_refused_by_both(text: str) -> None:
    assert not is_accepted(text)
    assert not is_valid(text)


@pytest.mark.parametrize(
    "text",
    [
        STEP + "id: b\n",
        STEP + "exec: {source: go}\n",
        STEP + "needs: [b]\n    depends_on: [b]\n",
        STEP + "concurrency: 2\n    strategy: {matrix: {os: [a]}}\n",
        STEP.replace("prompt: go", "expect: any"),
        AGENT.replace(", command: [make]", ""),
        AGENT.replace("command: [make]", "command: [make], script: []"),
        "agents: {x: {adapter: scripted}}\n",
        "agents: {x: {adapter: scripted, script: [{say: a, fail: b}]}}\n",
        "agents: {x: {adapter: scripted, script: [{}]}}\n",
        "personas: {p: {system_prompt: a, system_prompt_file: b}}\n",
    ],
)
def test_a_rule_between_keys_is_left_to_validate(text: str) -> None:
    assert not is_accepted(text)
    assert is_valid(text)


def test_every_key_has_a_meaning_and_a_kind() -> None:
    for mapping in mappings():
        for key, value in mapping["properties"].items():
            assert value.get("description", "").endswith("."), f"{mapping['title']}.{key}: a docstring below the field"
            assert {"type", "anyOf", "enum", "const", "$ref"} & set(value), f"{mapping['title']}.{key}: any value"


def mappings() -> list[JsonSchemaValue]:
    whole = made.schema()
    found = [whole, *whole["$defs"].values()]
    return [
        {**piece, "title": one["title"]}
        for one in found
        for piece in (one, *one.get("anyOf", ()))
        if "properties" in piece
    ]


def test_every_mapping_refuses_unknown_keys() -> None:
    assert all(mapping["additionalProperties"] is False for mapping in mappings())


def test_the_table_of_validators_has_no_entry_that_nobody_uses() -> None:
    files = list((ROOT / "src/shoal/pipeline").rglob("*.py"))

    def is_used(module: str, name: str) -> bool:
        return any(f"Validator({name}" in path.read_text() for path in files if path.stem == module)

    assert [name for name in TAKES if not is_used(*name.split("."))] == []


@pytest.mark.parametrize("path", reference.PAGES, ids=lambda path: path.stem)
def test_the_reference_is_not_stale(path: Path) -> None:
    assert path.read_text() == reference.PAGES[path](), "run `python -m scripts.reference`"
