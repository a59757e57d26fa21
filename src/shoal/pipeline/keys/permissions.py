"""The shape of `permissions:`; each wrong item is reported at its position."""

from typing import Annotated

from pydantic import AfterValidator, Field

from shoal.errors import BadInput
from shoal.model.permissions import Permissions
from shoal.pipeline.fields import Shape, wrong


def _item_of(name: str) -> AfterValidator:
    """Accept what the list *name* may contain, as far as a sandbox can enforce it."""

    def check(value: str) -> str:
        try:
            Permissions.of({name: [value]}).in_session()
        except BadInput as error:
            raise wrong(str(error)) from None
        return value

    return AfterValidator(check)


HostItem = Annotated[str, _item_of("hosts")]
ProviderToolName = Annotated[str, _item_of("provider_tools")]


class PermissionsShape(Shape):
    """What an agent may use and change."""

    allowed_tools: list[Annotated[str, _item_of("allowed_tools")]] = Field(default_factory=list)
    """Tools that it may use, like `Read` or `Bash(git *)`; default: all. Its client enforces them."""
    deny: list[Annotated[str, _item_of("deny")]] = Field(default_factory=list)
    """Tools that it may not use; what agent, persona or step denies stays denied."""
    readable: list[Annotated[str, _item_of("readable")]] = Field(default_factory=list)
    """Absolute paths outside the workspace that it can read."""
    writable: list[Annotated[str, _item_of("writable")]] = Field(default_factory=list)
    """Files and folders of the workspace that it may change; default: all."""
    env: list[Annotated[str, _item_of("env")]] = Field(default_factory=list)
    """Host variables that `env: {X: {from: NAME}}` may use; default: any."""
    hosts: list[HostItem] = Field(default_factory=list)
    """Hosts that it may reach; default: as `network` says."""
    provider_tools: list[ProviderToolName] = Field(default_factory=list)
    """Tools that its model's provider may carry out, on `network: gateway`; default: none."""

    @property
    def given(self) -> Permissions:
        """Return what was written: an absent list is not an empty one."""
        return Permissions.of({name: getattr(self, name) for name in self.model_fields_set})
