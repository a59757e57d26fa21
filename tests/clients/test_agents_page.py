"""The examples of the page about agents run as they stand, with a model on loopback."""

import re
import shlex

import pytest

from tests.cli import warm
from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, CODEX, ROOT, Real, workers

PAGE = (ROOT / "docs" / "agents.md").read_text()
DOCUMENTS = re.findall(r"^```yml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("real", "document"), list(zip((CLAUDE, CODEX), DOCUMENTS, strict=True)), ids=["claude", "codex"]
)
def test_a_document_on_the_page_runs(scene: MakeScene, real: Real, document: str) -> None:
    here = scene(real)
    (here.repo / "shoal.yaml").write_text(document.replace("http://127.0.0.1:8080", here.model.url))

    report = here.run()

    assert report["status"] == "succeeded", report
    assert [worker["output"] for worker in workers(report).values()] == ["ok\n"]


def test_the_command_on_the_page_runs_without_any_description(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    (line,) = re.findall(r"^shoal run --task .*$", PAGE, re.MULTILINE)

    said = warm.ran(shlex.split(line)[1:], cwd=here.repo, env=here.environ(), timeout=90)

    assert said.code == 0, said.err
    sent = b"".join(request.raw for request in here.model.requests)
    assert b"Mend the tests" in sent
    assert b"Write the docs" in sent
