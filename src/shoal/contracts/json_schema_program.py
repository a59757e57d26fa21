"""A program that validates a JSON document against a schema.

    json_schema_program.py PLACE SECONDS MOST BYTES

Its input is a line with the schema, and then the document. It prints `fits`, or `unfit` and then a line for each of at
most MOST faults: a list of the path and the message. The kernel ends it after SECONDS, whatever it is doing.

Run as `python -I -S`, so it imports nothing of ours; PLACE is the folder of jsonschema_rs.
"""

from __future__ import annotations

import itertools
import json
import resource
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

MOST_MEMORY = 768 * 2**20
ALL_AT_ONCE = 64 * 1024
"""Up to this size, all faults of a document are collected; for a larger one, only the first."""


def main(place: str, seconds: int, most: int, size: int) -> None:
    """Report first whether the document is valid, then the faults."""
    signal.alarm(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    sys.path.insert(0, place)
    import jsonschema_rs

    schema, _, content = sys.stdin.buffer.read().partition(b"\n")
    validator = jsonschema_rs.validator_for(json.loads(schema), offline=True)
    value = json.loads(content)
    is_fit = validator.is_valid(value)
    print("fits" if is_fit else "unfit", flush=True)
    if not is_fit:
        errors = validator.iter_errors(value) if len(content) <= ALL_AT_ONCE else first(validator, value)
        for error in itertools.islice(errors, most):
            print(json.dumps(["/".join(map(str, error.instance_path)), error.message[:size]]), flush=True)


def first(validator: Validator, value: object) -> Iterator[ValidationError]:
    """Yield the first fault: collecting a million takes half a minute."""
    import jsonschema_rs

    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        yield error


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
