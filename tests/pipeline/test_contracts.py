"""`contract:` in a document: every mistake at its position; the rest becomes a value."""

import json
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.model.contract import (
    AgentReview,
    CommandContract,
    Contract,
    JsonSchema,
    NonEmptyFile,
    NoTestDeletions,
    SourceDiff,
    compliance,
)
from shoal.pipeline.keys.contracts import Contracted, ContractShape, Schemas, contract_nodes, contract_problems
from shoal.pipeline.problems import Problem
from shoal.pipeline.shell_check import shell_problems
from shoal.pipeline.tree import Node, find, items, plain
from shoal.pipeline.validation_errors import shape_problems
from shoal.pipeline.yaml_reader import compose

HEAD = (
    "agents: {x: {adapter: command, command: a}}\n"
    "personas: {critic: {agent: x}, orphan: {}}\n"
    "steps:\n"
    "  - {name: a, persona: critic, prompt: go, output_artifacts: [{name: plan, path: plan.json}],\n"
)


def document(written: str) -> tuple[Node, Node]:
    """A step with contracts in the fifth line; the whole tree, and the contracts' own part of the step."""
    tree = compose(f"{HEAD}{written}}}\n", "f.yaml").tree
    step = next(iter(items(find(tree, "steps"))))
    return tree, step


def wrong(written: str) -> list[str]:
    tree, step = document(written)
    found: list[Problem] = [*contract_problems(tree, step, "f.yaml"), *shell_problems(step, "f.yaml")]
    for node in contract_nodes(step):
        found += shape_problems(ContractShape, node, "f.yaml")
    return [str(one).removeprefix("f.yaml:") for one in sorted(found)]


def made(written: str, schemas: dict[str, str] | None = None) -> tuple[Contract, ...]:
    assert wrong(written) == []
    _, step = document(written)
    written_keys = {name: plain(node) for name in ("contract", "contracts") if (node := find(step, name)) is not None}
    return Contracted.model_validate(written_keys).to_contracts(schemas or {})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            "type: json_schema, path: out/plan.json, schema: {type: object}",
            JsonSchema(type="json_schema", path="out/plan.json", schema='{"type":"object"}'),
        ),
        (
            "type: json_schema, artifact: plan, schema_file: s.json",
            JsonSchema(type="json_schema", artifact="plan", schema="{}"),
        ),
        (
            "type: test_suite, command: pytest -q && ruff",
            CommandContract(type="test_suite", command="pytest -q && ruff"),
        ),
        (
            "type: command, command: [make, check], timeout: 2m",
            CommandContract(type="command", command=("make", "check"), timeout=120),
        ),
        ("type: non_empty_file, path: NOTES.md", NonEmptyFile(type="non_empty_file", path="NOTES.md")),
        ("type: source_diff", SourceDiff(type="source_diff")),
        (
            "type: source_diff, glob: 'src/**', paths: [lib/], exclude: ['*.md'], min_files: 2",
            SourceDiff(type="source_diff", paths=("src/**", "lib/"), exclude=("*.md",), min_files=2),
        ),
        (
            "type: no_test_deletions, patterns: ['t_*.py'], on_failure: warn",
            NoTestDeletions(type="no_test_deletions", patterns=("t_*.py",), only_warns=True),
        ),
        (
            "type: agent_review, persona: critic, criteria: is it good, must_pass: false",
            AgentReview(type="agent_review", persona="critic", criteria="is it good", only_warns=True),
        ),
    ],
)
def test_each_type_becomes_a_value(written: str, expected: Contract) -> None:
    assert made(f"contract: {{{written}}}", {"s.json": "{}"}) == (expected,)


def test_several_keep_their_order() -> None:
    both = made("contracts: [{type: source_diff}, {type: non_empty_file, path: a}]")

    assert [one.type for one in both] == ["source_diff", "non_empty_file"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("contract: {type: test_suit, command: a}", "5:18: `type` cannot be 'test_suit'; did you mean `test_suite`?"),
        ("contract: {command: a}", "5:11: `type` is missing; add it"),
        ("contract: {type: source_diff, globs: a}", "5:31: unknown key `globs`; did you mean `glob`?"),
        ("contract: {type: command, command: a, glob: b}", "5:39: `glob` goes with a contract of type `source_diff`, not with `command`; remove it"),
        ("contract: {type: source_diff, path: b}", "5:31: `path` goes with a contract of type `json_schema` or `non_empty_file`, not with `source_diff`; remove it"),
        ("contract: {type: command}", "5:11: `command` is missing; a contract of type `command` needs it"),
        ("contract: {type: command, command: ''}", '5:36: `command` must be a text for the shell or a list of words, like "pytest -q" or ["pytest", "-q"]'),
        ("contract: {type: command, command: [a, 1]}", '5:36: `command` must be a text for the shell or a list of words, like "pytest -q" or ["pytest", "-q"]'),
        ("contract: {type: command, command: a, timeout: soon}", "5:48: 'soon' is not a duration; write seconds, or like `90s`, `10m`, `1h30m` (30 days at most)"),
        ("contract: {type: json_schema, path: a, artifact: plan, schema: {}}", "5:40: both `path` and `artifact` are given; keep one of them"),
        ("contract: {type: json_schema, path: a}", "5:11: `schema` or `schema_file` is missing; a contract of type `json_schema` needs it"),
        ("contract: {type: json_schema, artifact: plans, schema: {}}", "5:41: this step leaves no artifact named 'plans'; did you mean `plan`?"),
        ("contract: {type: non_empty_file, path: ../a}", "5:40: '../a': the path must stay inside the workspace; remove the `..`"),
        ("contract: {type: non_empty_file, path: /etc/passwd}", "5:40: '/etc/passwd': the path must be inside the workspace; write it from the top, without a leading `/`"),
        ("contract: {type: json_schema, path: a, schema: {type: \"\\u202e\"}}", "5:55: this is not a usable JSON Schema: \"\\u202e\" is not valid under any of the schemas listed in the 'anyOf' keyword"),
        ("contract: {type: source_diff, min_files: 0}", "5:42: `min_files` must be at least 1, not 0"),
        ("contract: {type: source_diff, glob: /a}", "5:37: '/a' is not a pattern for paths in the repository; write one like `src/**/*.py`"),
        ("contract: {type: agent_review, persona: crític, criteria: a}", "5:41: no persona named 'crític'; did you mean `critic`?"),
        ("contract: {type: agent_review, persona: orphan, criteria: a}", "5:41: the persona `orphan` names no agent, and a reviewer needs one"),
        ("contract: {type: agent_review, agent: y, criteria: a}", "5:39: no agent named 'y'; known: x"),
        ("contract: {type: source_diff, must_pass: true, on_failure: warn}", "5:31: `must_pass: true` and `on_failure: warn` contradict each other; keep one"),
        ("contract: {type: source_diff, on_failure: skip}", "5:43: `on_failure` cannot be 'skip'; known: fail, warn"),
        ("contract: {type: source_diff}, contracts: [{type: source_diff}]", "5:32: both `contract` and `contracts` are given; keep one of them"),
        ("contract: {type: command, command: '{% if x %}a{% endif %}'}", "5:37: `{% … %}` cannot be used in a shell's text; give it values by `{{ … }}`, and let the shell decide"),
        ("contract: {type: command, command: [bash, -o, pipefail, -c, '{% if x %}a{% endif %}']}", "5:62: `{% … %}` cannot be used in a shell's text; give it values by `{{ … }}`, and let the shell decide"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_at_its_place(written: str, expected: str) -> None:
    assert wrong(written) == [expected]


@pytest.mark.parametrize(
    ("schema", "place", "told"),
    [
        ("{type: objekt}", "5:65", "is not valid under any"),
        ("{properties: {a: {type: 7}}}", "5:82", "is not valid under any"),
        ("{$ref: 'http://127.0.0.1:1/s.json'}", "5:58", "nothing is fetched: write what it refers to below `$defs`"),
        ("{$ref: 'file:///etc/passwd'}", "5:58", "nothing is fetched"),
        ("{$ref: 'other.json'}", "5:58", "nothing is fetched"),
        ("{$schema: 'https://example.org/own', type: object}", "5:58", "Unknown meta-schema"),
        ("{$ref: '#/$defs/nothing'}", "5:58", "does not exist"),
        ("{maximum: .nan}", "5:58", "JSON"),
    ],
)
def test_a_schema_is_compiled_before_anything_runs_and_fetches_nothing(schema: str, place: str, told: str) -> None:
    (line,) = wrong(f"contract: {{type: json_schema,           path: a, schema: {schema}}}")

    assert told in line
    assert line.split(": ")[0] == place


def test_a_schema_in_a_file_is_read_once_and_told_where_it_is_wrong() -> None:
    one = "{type: json_schema, path: a, schema_file: %s}"
    tree, _ = document(
        f"contracts: [{one % 'a.json'}, {one % 'a.json'}, {one % 'b.json'}, {one % 'c.json'}, {one % 'd.json'}]"
    )
    files = {"a.json": b'{"type": "object"}', "b.json": b'{\n "type": }', "c.json": b"[" * 100_000}
    asked: list[str] = []

    def read(file: str, most: int) -> bytes:
        asked.append(file)
        if file not in files:
            raise BadInput(f"cannot read {file!r} (not there); check the path")
        return files[file][:most]

    schemas = Schemas(tree, "f.yaml", read)

    assert schemas.found == {"a.json": '{"type":"object"}'}
    assert asked == ["a.json", "b.json", "c.json", "d.json"]
    assert [str(one) for one in schemas.problems] == [
        "b.json:2:10: this is not JSON (Expecting value)",
        "f.yaml:5:208: `schema_file`: 'c.json' is not valid JSON; check it",
        "f.yaml:5:259: `schema_file`: cannot read 'd.json' (not there); check the path",
    ]


def test_what_fills_in_a_shells_text_is_never_read_as_a_command() -> None:
    contract = CommandContract(type="command", command='pytest "{{ input }}" {{ worker.index }}')

    filled = contract.fill_in({"{{ input }}": "$(evil)'\"", "{{ worker.index }}": "0"}.__getitem__)

    text = 'shoal_value_1=${1} shoal_value_2=${2}; shift 2; pytest "${shoal_value_1}" "${shoal_value_2}"'
    assert filled.argv == ("/bin/sh", "-c", text, "sh", "$(evil)'\"", "0")
    assert filled.words == 'pytest "$(evil)\'"" 0'


@pytest.mark.parametrize("command", ["printf %s {{ x }}", 'printf %s "{{ x }}"', "printf %s '{{ x }}'"])
@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@settings(max_examples=5, deadline=None)
def test_any_value_reaches_a_command_as_it_is(command: str, value: str) -> None:
    contract = CommandContract(type="command", command=command).fill_in(lambda _: value)

    done = subprocess.run(contract.argv, capture_output=True, check=True)

    assert done.stdout == value.encode()


def test_all_that_will_be_checked_is_told_in_plain_sentences() -> None:
    contracts = made(
        "contracts: [{type: test_suite, command: pytest -q, timeout: 60}, {type: source_diff, glob: 'src/**', exclude: ['*.md']},"
        " {type: agent_review, persona: critic, criteria: Is it small?, on_failure: warn},"
        " {type: json_schema, path: p.json, schema: {type: object}}]"
    )

    told = compliance(contracts)

    assert told == (
        "## Contract compliance\n\n"
        "When you have ended, your work is committed and checked. It counts only when all of this holds:\n"
        "- the command `pytest -q` exits with 0 within 60 seconds, run on a fresh checkout of your commit\n"
        "- at least 1 file of `src/**` are changed, not counting `*.md`\n"
        "- a reviewer (persona critic) finds that your changes meet these criteria: Is it small? (a warning only)\n"
        '- the file `p.json` is JSON that fits this schema: {"type":"object"}'
    )
    assert compliance(()) == ""


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["type", "path", "schema", "command", "paths", "timeout", "criteria", "$ref"])
                | st.text(max_size=5),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_whatever_is_written_there_is_only_an_error_of_ours(value: object) -> None:
    tree, step = document(f"contract: {json.dumps(value)}, contracts: [{json.dumps(value)}]")

    list(contract_problems(tree, step, "f.yaml"))
    for node in contract_nodes(step):
        shape_problems(ContractShape, node, "f.yaml")
    Schemas(tree, "f.yaml", lambda file, most: b"{}")
