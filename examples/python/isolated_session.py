"""One isolated session by hand: a workspace, a branch, a database and a wall of its own."""

from pathlib import Path

from shoal import IsolatedAgentSession, ResourceLimits

with IsolatedAgentSession("agent-1", base_workspace=Path(), limits=ResourceLimits(memory_mb=512)) as session:
    (session.workspace / "notes.txt").write_text("from the host\n")
    session.run("echo from the box >> notes.txt")
    print(session.db_path.name)

result = session.result  # there when the block is over
assert result is not None and result.branch is not None  # noqa: PT018, S101
print(result.status, result.branch.rpartition("/")[0])

# prints agent_agent-1.db
# prints succeeded agent/agent-1
