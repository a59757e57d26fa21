"""`shoal schema`: one JSON document, also where `--json` is said."""

import json

import jsonschema_rs

from tests.cli.conftest import Shoal


def test_it_prints_a_schema(shoal: Shoal) -> None:
    said = shoal("schema")
    document = json.loads(said.out)

    assert (said.code, said.err) == (0, "")
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert jsonschema_rs.Draft202012Validator(document).is_valid({"runtime": {"max_concurrent_workers": 3}})
    assert not jsonschema_rs.Draft202012Validator(document).is_valid({"runtime": {"max_concurrent_workers": 0}})
    assert shoal("schema", "--json").out == said.out
