"""Contracts about JSON: it matches its schema or not, whatever the agent wrote, and nothing is fetched."""

from dataclasses import replace
from pathlib import Path

from shoal.model.contract import JsonSchema
from tests.contracts.contracting import asked, committed, schema


async def test_json_that_fits_its_schema(repo: Path) -> None:
    commit = committed(
        repo, """echo '{"a": [1, 2]}' > ok.json; echo '{"a": ["x"], "b": 1}' > bad.json; echo '{a' > not.json"""
    )
    form = {"type": "object", "properties": {"a": {"items": {"type": "integer"}}}, "additionalProperties": False}

    names = ("ok.json", "./ok.json", "bad.json", "not.json", "none.json")
    one, same, bad, no, none = await asked(repo, commit, *(schema(name, **form) for name in names))

    assert one.is_met
    assert same.is_met
    assert bad.message == (
        '`bad.json` does not fit the schema: a/0: "x" is not of type "integer"; Additional properties are not allowed'
        " ('b' was unexpected)"
    )
    assert no.message.startswith("`not.json` is not JSON: ")
    assert none.message == "`none.json` is missing, or is not a regular file"


async def test_an_artifact_that_fits_its_schema(repo: Path) -> None:
    contract = JsonSchema(type="json_schema", artifact="plan", schema='{"type": "array"}')

    names = ("plan", "list", "none")

    found = await asked(
        repo, None, *(replace(contract, artifact=name) for name in names), artifacts={"plan": b"{}", "list": b"[]"}
    )

    assert [one.message for one in found] == [
        'the artifact plan does not fit the schema: {} is not of type "array"',
        "met",
        "the artifact none is missing, or is not a regular file",
    ]


BOMBS = (
    b"[" * 200_000,
    b"[" * 200_000 + b"]" * 200_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b"[" + b"{}," * 700_000 + b"{}]",
    b"9" * 100_000,
    b"[NaN]",
    b" " * 5_000_000 + b"{}",
    b"\xff{}",
    b"",
)


async def test_json_that_is_a_bomb_is_only_not_met(repo: Path) -> None:
    for number, bomb in enumerate(BOMBS):
        (repo / f"{number}.json").write_bytes(bomb)
    commit = committed(repo, "true")

    found = await asked(repo, commit, *(schema(f"{number}.json") for number, _ in enumerate(BOMBS)))

    assert [one.is_met for one in found] == [False] * len(BOMBS)
    assert max(len(one.message) for one in found) < 1000


async def test_a_schema_that_refers_elsewhere_is_not_met_and_fetches_nothing(repo: Path) -> None:
    """Documents refuse it; whoever makes a contract in another way meets the same."""
    commit = committed(repo, "echo 1 > a.json")
    refs = ("http://127.0.0.1:1/x", "file:///etc/hostname", "other.json")

    found = await asked(repo, commit, *(schema("a.json", **{"$ref": ref}) for ref in refs))

    assert ["it could not be checked: this is not a usable JSON Schema" in one.message for one in found] == [True] * 3


async def test_a_document_that_keeps_a_validator_for_ever_is_told_soon(repo: Path) -> None:
    """By a schema that comes back to itself, what is wrong with 40 levels is asked 2 to the 40th time."""
    either = {"properties": {"c": {"$ref": "#"}}}
    form = {"type": "object", "oneOf": [{**either, "required": ["c"]}, {**either, "required": ["d"]}]}
    (repo / "deep.json").write_text('{"c":' * 40 + "5" + "}" * 40)
    (repo / "right.json").write_text('{"d":' * 40 + '{"d": 5}' + "}" * 40)

    deep, right = await asked(repo, committed(repo, "true"), schema("deep.json", **form), schema("right.json", **form))

    assert deep.message == "`deep.json` does not fit the schema: too many places to list"
    assert right.is_met


async def test_a_million_faults_are_one_too_many(repo: Path) -> None:
    (repo / "many.json").write_text("[" + '"x",' * 900_000 + "0]")

    (found,) = await asked(repo, committed(repo, "true"), schema("many.json", items={"type": "integer"}))

    assert found.message == '`many.json` does not fit the schema: 0: "x" is not of type "integer"'
