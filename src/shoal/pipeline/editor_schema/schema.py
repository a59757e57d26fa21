"""The pipeline language as a JSON Schema for editors, made from the shapes and a table for what those cannot express.

A key's description is the docstring below it in its shape. A validator that takes more, or other values, than its
type declares them with `json_schema_input_type`, or has an entry in `values.TAKES`. The schema never refuses what
`shoal validate` accepts; rules between keys are checked only by the latter, whose messages say what to do.
"""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Callable, Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from shoal.pipeline.editor_schema.values import NAMED, TAKES
from shoal.pipeline.names import PATTERN
from shoal.pipeline.shape import FileShape

NAME = {"pattern": f"^{PATTERN}$"}
SOME = {"minItems": 1}
LABELS = {"propertyNames": NAME}
BOUNDS: Mapping[str, Mapping[str, JsonSchemaValue]] = {
    "FileShape": {"steps": SOME, "pipelines": SOME, "agents": LABELS, "personas": LABELS},
    "PipelineShape": {"name": NAME, "steps": SOME},
    "StepShape": {"name": NAME, "id": NAME},
}
"""Limits of a key besides its type. Rules between keys are left to `shoal validate`."""

ANY = core_schema.any_schema()
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> JsonSchemaValue:
    """Make the schema of a whole file."""
    made = FileShape.model_json_schema(schema_generator=Generator)
    shapes = {name: _referring(shape) for name, shape in sorted(made["$defs"].items())}
    made["$defs"] = {**shapes, **NAMED}
    return {"$schema": DIALECT, **made}


class Generator(GenerateJsonSchema):
    """Pydantic's generator, with schemas for our validators."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Omit titles of keys, which would only repeat the key."""
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Add the descriptions and limits of a shape's keys."""
        made = super().model_schema(schema)
        shape = schema["cls"]
        made["title"] = shape.__name__.removesuffix("Shape")
        for name, meaning in meanings(shape).items():
            made["properties"][name] = {**made["properties"][name], "description": meaning}
        if bounds := BOUNDS.get(shape.__name__):
            made["allOf"] = [{"properties": dict(bounds)}]
        return made

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        """Look it up: a plain validator does not say what it takes."""
        declared = schema.get("json_schema_input_schema", ANY)["type"] != "any"
        return _schema_of_input(
            schema["function"]["function"], super().function_plain_schema(schema), declared=declared
        )

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Look it up: a before validator may take more than its type."""
        declared = "json_schema_input_schema" in schema
        return _schema_of_input(
            schema["function"]["function"], super().function_before_schema(schema), declared=declared
        )

    def function_after_schema(self, schema: core_schema.AfterValidatorFunctionSchema) -> JsonSchemaValue:
        """Name the choices if it is `one_of`; an after validator can only take less than its type."""
        made = super().function_after_schema(schema)
        if (taken := TAKES.get(_validator_name(validator := schema["function"]["function"]))) is not None:
            return taken(made)
        names = _choices(validator)
        return {**made, "enum": list(names)} if names else made


def meanings(shape: type[BaseModel]) -> dict[str, str]:
    """Read the descriptions of *shape*'s keys from the docstrings below its fields, only on demand.

    Pydantic's own `use_attribute_docstrings` would read the sources at every start, which takes 20 ms.
    """
    found: dict[str, str] = {}
    for base in reversed(shape.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= _docstrings(base)
    return {_key(name, field): found[name] for name, field in shape.model_fields.items() if name in found}


def _docstrings(shape: type[BaseModel]) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(shape))).body
    lines = body.body if isinstance(body, ast.ClassDef) else []
    found: dict[str, str] = {}
    for line, after in itertools.pairwise(lines):
        match line, after:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                found[name] = " ".join(words.split())
    return found


def _key(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _choices(validator: object) -> tuple[str, ...]:
    """Return the names that a validator of `one_of` takes; empty for another validator."""
    if not inspect.isfunction(validator) or validator.__qualname__ != "one_of.<locals>.check":
        return ()
    names: tuple[str, ...] = inspect.getclosurevars(validator).nonlocals["names"]
    return names


def _schema_of_input(validator: Callable[..., object], inner: JsonSchemaValue, *, declared: bool) -> JsonSchemaValue:
    """Return what *validator* takes: *inner* if it *declared* that, otherwise what its type takes."""
    name = _validator_name(validator)
    if name in TAKES:
        return TAKES[name](inner)
    if not declared:
        raise TypeError(
            f"the type of `{name}` is unknown: give it a `json_schema_input_type`, or add it to `values.TAKES`"
        )
    return inner


def _validator_name(validator: Callable[..., object]) -> str:
    return f"{validator.__module__.rpartition('.')[2]}.{getattr(validator, '__name__', '')}"


def _referring(node: object) -> object:
    """Replace inlined named schemas by references."""
    if isinstance(node, list):
        return [_referring(value) for value in node]
    if not isinstance(node, dict):
        return node
    if (title := str(node.get("title"))) in NAMED:
        own = {key: value for key, value in node.items() if value != NAMED[title].get(key)}
        return {"$ref": f"#/$defs/{title}", **own}
    return {key: _referring(value) for key, value in node.items()}
