"""The contract `source_diff`: at least a number of files that match its patterns are changed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.contracts.workbench import Workbench, list_paths
from shoal.model.contract import SourceDiff

if TYPE_CHECKING:
    from shoal.pipeline.keys.contracts import ContractShape

KEYS = ("glob", "paths", "exclude", "min_files")
NEEDED = ()


def build(keys: "ContractShape", schemas: Mapping[str, str]) -> SourceDiff:
    """Build the contract that *keys* describe."""
    del schemas
    paths = (*((keys.glob,) if keys.glob else ()), *(keys.paths or ())) or ("**",)
    exclude = tuple(keys.exclude or ())
    return SourceDiff(
        type=keys.type, only_warns=keys.only_warns, paths=paths, exclude=exclude, min_files=keys.min_files
    )


async def check(contract: SourceDiff, bench: Workbench) -> str | None:
    """Return that too few files are changed, or `None`."""
    from shoal.contracts.committed_files import fitting  # it runs git

    changed = [change.path for change in await bench.changes()]
    meant = await fitting(changed, contract.paths)
    counted = meant - await fitting(meant, contract.exclude)
    if len(counted) >= contract.min_files:
        return None
    beside = [path for path in changed if path not in counted]
    also = f"; also changed: {list_paths(beside, bench.mask)}" if beside else ""
    wanted = f"of {', '.join(contract.paths)}" + (f" without {', '.join(contract.exclude)}" if contract.exclude else "")
    return f"{len(counted)} files {wanted} are changed, but at least {contract.min_files} are required{also}"
