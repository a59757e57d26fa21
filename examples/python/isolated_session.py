"""One isolated session by hand: it has its own workspace, branch, database and sandbox."""

from pathlib import Path

from shoal import IsolatedAgentSession, ResourceLimits

with IsolatedAgentSession("agent-1", base_workspace=Path(), limits=ResourceLimits(memory_mb=512)) as session:
    (session.workspace / "notes.txt").write_text("from the host\n")
    session.run("echo from the sandbox >> notes.txt")
    print(session.db_path.name)

result = session.result  # set when the block has ended
assert result is not None and result.branch is not None  # noqa: PT018, S101
print(result.status, result.branch.rpartition("/")[0])

# prints agent_agent-1.db
# prints succeeded agent/agent-1
