"""Work that cannot be kept for a temporary reason is kept later in the same run."""

import os
import shutil
from pathlib import Path

from tests.cli.conftest import SHOAL
from tests.cli.flows import written
from tests.cli.test_approve import started
from tests.conftest import git


def test_a_sandbox_that_is_gone_for_a_moment_costs_no_work(repo: Path, tmp_path: Path) -> None:
    program = Path(shutil.which("bwrap") or "")
    link, go = tmp_path / "bin/bwrap", tmp_path / "go"
    link.parent.mkdir()
    link.symlink_to(program)
    (tmp_path / "out").mkdir()
    task = f"echo precious > work; echo ready; while [ ! -e {tmp_path}/out/go ]; do sleep 0.05; done"
    written(repo, "steps: [{name: work, agent: work, prompt: x}]", runtime=f"toolchains: ['{tmp_path}/out']", work=task)
    path = f"{link.parent}:{os.environ['PATH']}"
    with started(repo, "env", f"PATH={path}", SHOAL, "run", "p.yaml", "--events") as run:
        run.until_said("ready")
        link.rename(go)
        (tmp_path / "out/go").touch()
        why = run.until("Waiting")["reason"]
        go.rename(link)
        result = run.until("SessionEnded")["result"]
        assert run.process.wait(timeout=60) == 0

    assert "cannot be kept yet" in why
    assert result["status"] == "succeeded"
    assert git(repo, "show", f"{result['branch']}:work") == "precious"
