"""Adding a kind of enforcement takes one file and one line."""

import json
from pathlib import Path

from tests.conftest import git
from tests.package_copy import PackageCopy

TOY = '''"""A toy: polling under another name."""

from shoal.limits.cgroup_files import LimitsHost
from shoal.limits.polling import Polling
from shoal.model.limits import ResourceLimits


class Toy(Polling):
    name = "toy"


async def build(host: LimitsHost, fleet: ResourceLimits | None) -> Toy:
    return Toy()
'''
PIPELINE = """
agents:
  writer: {adapter: command, command: [sh, -c, 'echo fine > fine.txt']}
  crowd: {adapter: command, command: [sh, -c, 'for i in $(seq 60); do sleep 60 & done; wait']}
steps:
  - {name: write, agent: writer, prompt: Write it}
  - {name: crowd, agent: crowd, prompt: Start many, limits: {pids: 20}}
"""


def test_a_new_kind_is_one_file_and_one_line(tmp_path: Path, repo: Path) -> None:
    package = PackageCopy.make(tmp_path)
    package.add_kind("limits/choose.py", "toy", TOY)
    (repo / "shoal.yaml").write_text(PIPELINE)

    document = json.loads(package.run(repo, "run", "shoal.yaml", "--json", code=1))

    written, crowd = (step["worker_results"][0] for step in document["steps"])
    assert document["limits"].startswith("toy ")
    assert git(repo, "show", f"{written['branch']}:fine.txt") == "fine"
    assert (crowd["status"], crowd["limit"]) == ("over_limit", "pids")
