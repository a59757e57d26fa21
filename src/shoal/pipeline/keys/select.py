"""The shape of `select:`: by what one of several workers' results is picked."""

from collections.abc import Callable, Iterator
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from shoal.model.select import CRITERIA, Select
from shoal.pipeline.fields import Duration, Shape, one_of, wrong
from shoal.pipeline.keys.contracts import Words
from shoal.pipeline.problems import Position, Problem
from shoal.pipeline.tree import Node, Scalar, find, items, key_position, text, value_of

OWN_KEYS = {"command": ("command",), "agent": ("agent", "persona", "criteria")}
"""Which keys go with which criterion only."""


def _as_list(value: object) -> object:
    if value == []:
        raise wrong(f"`by` is empty; name one of {', '.join(CRITERIA)}")
    return [value] if isinstance(value, str) else value


def _once(by: list[str]) -> list[str]:
    if len(set(by)) < len(by):
        raise wrong("`by` names a criterion twice; remove one")
    return by


Criterion = Annotated[str, one_of("by", *CRITERIA)]
By = Annotated[
    list[Criterion],
    Field(min_length=1),
    AfterValidator(_once),
    BeforeValidator(_as_list, json_schema_input_type=Criterion | list[Criterion]),
]


class SelectShape(Shape):
    """How to pick a winner: tests first, then contracts, then the smallest change, then a judge."""

    by: By
    """`command`, `contract`, `diff_size` or `agent`, or a list of them."""
    command: Words | None = None
    """Runs on each result; must exit with 0, and may print a score last, higher is better."""
    agent: str | None = None
    """The agent that judges."""
    persona: str | None = None
    """The persona that judges."""
    criteria: Annotated[str, Field(min_length=1)] | None = None
    """What the judge should look for."""
    timeout: Duration | None = None
    """Time limit of the command or the judge."""

    @property
    def given(self) -> Select:
        """Build the value."""
        return Select(
            by=tuple(self.by),
            command=self.command,
            agent=self.agent,
            persona=self.persona,
            criteria=self.criteria,
            timeout=self.timeout,
        )


def select_problems(step: Node, at: Callable[[Position, str], Problem]) -> Iterator[Problem]:
    """Find what makes no sense in the `select` of *step*."""
    select = value_of(step, "select")
    if select is None:
        return
    yield from _one_worker(step, at)
    by = find(select, "by")
    named = {text(by)} if isinstance(by, Scalar) else {text(item) for item in items(by)}
    if not named & set(CRITERIA):
        return  # its problems are reported elsewhere
    if "command" in named and not value_of(select, "command"):
        yield at(select.at, "`command` is missing; say what to run on each result, or select by something else")
    if "agent" in named and not value_of(select, "agent") and not value_of(select, "persona"):
        yield at(select.at, "`agent` or `persona` is missing; say who judges")
    if value_of(select, "agent") and value_of(select, "persona"):
        yield at(key_position(select, ["persona"]), "both `agent` and `persona` are given; keep one of them")
    for criterion, keys in OWN_KEYS.items():
        for name in keys if criterion not in named else ():
            if value_of(select, name):
                yield at(
                    key_position(select, [name]), f"`{name}` goes with `by: {criterion}` only; remove it or add that"
                )
    if "contract" in named and not value_of(step, "contract") and not value_of(step, "contracts"):
        yield at(key_position(select, ["by"]), "`by: contract` on a step without contracts; add one")


def _one_worker(step: Node, at: Callable[[Position, str], Problem]) -> Iterator[Problem]:
    where, workers = key_position(step, ["select"]), value_of(step, "concurrency")
    if value_of(step, "strategy"):
        yield at(where, "`select` picks one of several tries at the same work, which a matrix has not; remove it")
    elif workers is None or (isinstance(workers, Scalar) and workers.value == 1):
        yield at(where, "`select` picks one of several workers, and there is one; add `concurrency`, at least 2")
