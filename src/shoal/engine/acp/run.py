"""An agent of the Agent Client Protocol as a member of a run: it stands behind its wall, and its client here."""

import asyncio

from shoal.engine.acp.conversation import Conversation
from shoal.engine.agent_box import note_decision
from shoal.engine.agent_run import agent_run
from shoal.engine.job import Job
from shoal.engine.lease import Lease
from shoal.engine.site import Site
from shoal.engine.watch import Ended
from shoal.engine.words import Words
from shoal.model.permissions import PermissionManager
from shoal.workspaces.kind import Workspace


async def acp_run(site: Site, job: Job, workspace: Workspace, lease: Lease, words: Words, stop: asyncio.Event) -> Ended:
    """Give the task to the agent in one turn, and answer what it asks by the permissions of the session."""
    manager = PermissionManager(workspace.path, job.task.permitted)
    talk = Conversation(job.task, manager, words, lambda decision: note_decision(site, job, decision))
    return await agent_run(site, job, workspace, lease, words, stop, talk)
