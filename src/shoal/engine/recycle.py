"""Recycling a large worktree: in a box of its own it becomes the base again, to the last byte and mode."""

import asyncio
import os
import secrets
from dataclasses import replace
from pathlib import Path

from shoal.engine.behind import boxed
from shoal.engine.inner import git_environment
from shoal.engine.lease import Lease
from shoal.engine.site import Site
from shoal.engine.touched import has_attributes
from shoal.errors import ShoalError
from shoal.git.gitdir import write_gitdir
from shoal.model.command import Command
from shoal.workspaces.kind import Workspace

SECONDS = 120.0

# Whatever was touched since the opening in any way (content, mode, attributes: all change the ctime) is deleted
# and checked out again; git then finds only what is missing. A folder stays, so one with attributes is not used again:
# an agent could leave word there for the next, or a default access list.
SCRIPT = """
set -eu
find . -xdev -type d ! -perm 755 -exec chmod 755 {} \\;
find . -xdev -mindepth 1 ! -path ./.git ! -type d -cnewer "$MARK" -delete
git clean -ffdxq -e /.git
git read-tree --reset -u "$BASE"
git update-index -q --refresh
test -z "$(git status --porcelain --ignored)"
"""


async def recycled(site: Site, workspace: Workspace, lease: Lease) -> Path | None:
    """Make the workspace pristine and return its index, or `None` when it cannot serve again."""
    gitdir = lease.box / f"recycle-{secrets.token_hex(3)}"
    write_gitdir(gitdir, site.repository, head=site.base.commit, refs={}, index=workspace.index, loose_stat=False)
    env = git_environment(gitdir, workspace.path)
    env |= {"MARK": str(lease.opened), "BASE": site.base.commit}
    command = Command(argv=("/bin/sh", "-c", SCRIPT, "recycle"), cwd=workspace.path, env=env)
    policy = site.policy(token=secrets.token_hex(8), read=(lease.opened,), write=(workspace.path, gitdir))
    policy = replace(policy, uid=os.getuid(), gid=os.getgid())
    try:
        async with boxed(site.sandbox, command, policy, sink=lambda _stream, _data: None) as box:
            async with asyncio.timeout(SECONDS):
                done = await box.wait()
    except (ShoalError, TimeoutError):
        return None
    return gitdir / "index" if done.code == 0 and not has_attributes(workspace.path) else None
