"""The shape of `permissions:`, each wrong item told at its own place."""

from typing import Annotated

from pydantic import AfterValidator, Field

from shoal.errors import BadInput
from shoal.model.permissions import Permissions
from shoal.pipeline.fields import Shape, wrong


def _item_of(name: str) -> AfterValidator:
    """Accept what may stand in the list *name*, and what a wall can hold."""

    def check(value: str) -> str:
        try:
            Permissions.of({name: [value]}).in_session()
        except BadInput as error:
            raise wrong(str(error)) from None
        return value

    return AfterValidator(check)


class PermissionsShape(Shape):
    """What an agent may use and touch."""

    allowed_tools: list[Annotated[str, _item_of("allowed_tools")]] = Field(default_factory=list)
    """Tools that it may use, like `Read` or `Bash(git *)`; all where the list is left out. Its client keeps to them."""
    deny: list[Annotated[str, _item_of("deny")]] = Field(default_factory=list)
    """Tools that it may not use; what agent, persona or step denies stays denied."""
    readable: list[Annotated[str, _item_of("readable")]] = Field(default_factory=list)
    """Absolute paths outside of the workspace that are shown to it, read-only."""
    writable: list[Annotated[str, _item_of("writable")]] = Field(default_factory=list)
    """Files and folders of the workspace that it may change; all of it where the list is left out."""
    env: list[Annotated[str, _item_of("env")]] = Field(default_factory=list)
    """Variables of the host that `env: {X: {from: NAME}}` may take; any where the list is left out."""
    hosts: list[Annotated[str, _item_of("hosts")]] = Field(default_factory=list)
    """Hosts that it may speak to; what `network` says where the list is left out."""

    @property
    def given(self) -> Permissions:
        """What was written: a list that was left out is not an empty one."""
        return Permissions.of({name: getattr(self, name) for name in self.model_fields_set})
