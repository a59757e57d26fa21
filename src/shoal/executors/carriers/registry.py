"""The carriers by name."""

import importlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from shoal.errors import UnknownName
from shoal.executors.carriers.kind import Carrier, OpenCarrier
from shoal.model.nodes import NodeAddress

# Loaded when used: some import large libraries.
MODULES: Mapping[str, str] = {
    "pipe": "shoal.executors.carriers.pipe",
    "ssh": "shoal.executors.carriers.ssh",
    "ray": "shoal.executors.carriers.ray",
}


def open_carrier(address: NodeAddress, environ: Mapping[str, str]) -> AbstractAsyncContextManager[Carrier]:
    """Open the carrier that *address* names."""
    if address.carrier not in MODULES:
        raise UnknownName("carrier", address.carrier, MODULES)
    found: OpenCarrier = importlib.import_module(MODULES[address.carrier]).open_carrier
    return found(address, environ)
