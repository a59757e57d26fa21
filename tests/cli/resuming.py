"""A pipeline whose agents count their starts and can be blocked, for tests that interrupt it."""

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.cli.flows import written

# Agents count their starts, and one of them blocks for as long as the file `block` names it.
COUNT = 'me=$SHOAL_STEP-$SHOAL_WORKER_INDEX; echo $me >> "$OUTSIDE/starts"; echo x >> $me.txt; '
BLOCK = 'if [ "$(cat "$OUTSIDE/block" 2>/dev/null)" = $me ]; then echo "blocked $me"; sleep 60; fi; '
WORK = f'{COUNT}{BLOCK}eval "$(head -n 1 "$SHOAL_PROMPT_FILE")"'


class Scene:
    """A repository, a pipeline in it, and what its agents left outside."""

    def __init__(self, repo: Path, outside: Path, shoal: Shoal) -> None:
        self.repo, self.outside, self.shoal = repo, outside, shoal
        outside.mkdir()

    def write(self, steps: str, more: str = "") -> None:
        runtime = "sandbox: none, network: host, max_concurrent_workers: 3"
        script = f'OUTSIDE="{self.outside}"; export OUTSIDE; {WORK}'
        written(self.repo, steps, runtime=runtime, more=more, work=script)

    def starts(self) -> Counter[str]:
        return Counter((self.outside / "starts").read_text().split())

    def block(self, worker: str) -> None:
        (self.outside / "block").write_text(worker)

    def unblock(self) -> None:
        (self.outside / "block").unlink(missing_ok=True)

    def interrupt(self, marker: str, with_signal: int = signal.SIGKILL, *words: str) -> None:
        """Start the pipeline, and send a signal when an agent prints *marker*."""
        command = [str(SHOAL), "run", "p.yaml", "--events", *words]
        with subprocess.Popen(
            command, cwd=self.repo, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as running:
            assert running.stdout is not None
            next(line for line in running.stdout if marker in line)
            running.send_signal(with_signal)
            running.stdout.read()

    def report(self, *words: str) -> tuple[int, dict[str, Any]]:
        said = self.shoal(*words, "--json")
        assert said.out, said.err
        return said.code, json.loads(said.out)


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {step["step"]: step["status"] for step in report["steps"]}
