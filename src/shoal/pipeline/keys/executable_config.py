"""The key `executable_config`: patterns of files that are held from merging, and of files that are not."""

from typing import Annotated

from pydantic import AfterValidator, Field

from shoal.model.executable_files import ExecutableRules
from shoal.pipeline.fields import Shape, wrong
from shoal.pipeline.problems import show_value

LONGEST = 200
MOST = 200
MOST_STARS = 2  # in one part: more would let a long name take time


def _pattern(value: str) -> str:
    parts = value.removeprefix("/").split("/")
    if len(value) > LONGEST or "\0" in value or any(part in ("", ".", "..") for part in parts):
        raise wrong(f"a pattern is a path like `Makefile`, `*.mk` or `/scripts`, not {show_value(value)}")
    if "**" in value or any(part.count("*") > MOST_STARS for part in parts):
        raise wrong(f"{show_value(value)}: a part may have {MOST_STARS} `*`, each for any characters but `/`")
    if all(part.strip("*") == "" for part in parts):
        raise wrong(f"{show_value(value)} matches every file; name those that you mean")
    return value


Patterns = Annotated[list[Annotated[str, AfterValidator(_pattern)]], Field(max_length=MOST)]


class ExecutableConfigShape(Shape):
    """Which changes can run code on your machine, besides Shoal's own table."""

    add: Patterns = Field(default_factory=list)
    """More files and folders to hold, at any depth; with a leading `/`, only at the root. `*` matches all but `/`."""
    excepted: Patterns = Field(default_factory=list, alias="except")
    """Files and folders of the table that need no permission to merge."""

    def to_rules(self) -> ExecutableRules:
        """Build the rules."""
        return ExecutableRules(add=tuple(self.add), excepted=tuple(self.excepted))
