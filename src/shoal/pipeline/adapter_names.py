"""Which kinds of agent a document may ask for: ours, and those that other packages bring."""

import functools
from importlib.metadata import entry_points
from typing import Annotated

from pydantic import AfterValidator

from shoal.model.client_names import ENTRY_POINTS, EVERY
from shoal.pipeline.fields import wrong
from shoal.pipeline.problems import nearest, shown

OWN = ("command", "scripted", "python", *EVERY)


@functools.cache  # a file may name thousands, and each look takes milliseconds
def brought() -> tuple[str, ...]:
    """Name the adapters that other packages bring; they are those that were there when we first looked."""
    return tuple(sorted({one.name for one in entry_points(group=ENTRY_POINTS)} - {*OWN}))


def _adapter(name: str) -> str:
    if name in OWN or name in brought():
        return name
    raise wrong(f"`adapter` cannot be {shown(name)}; {nearest(name, (*OWN, *brought()))}")


AdapterName = Annotated[str, AfterValidator(_adapter)]
