"""A step's own sandbox and kind of workspace, from the command line, by precedence."""

from pathlib import Path

import pytest

from tests.cli.flows import Ran, ran
from tests.conftest import make_repo

# Whether it can see the host's files, whether its files lie on an overlay, and whether the user's repository knows it.
LOOK = """
[ -e "$SECRET" ] && echo open || echo shut
stat -f -c %T . | grep -q overlay && echo overlay || echo plain
git -C "$SHOAL_ROOT_PATH" worktree list 2> /dev/null | grep -q "$PWD " && echo linked || echo apart
echo x > work.txt
"""
PLACES = """
  walled: {{adapter: command, command: [sh, -c, {look}], sandbox: bubblewrap, env: {{SECRET: {secret}}}}}
personas:
  linked: {{agent: walled, isolation_strategy: worktree}}
steps:
  - {{name: of-the-run, agent: look, prompt: go, env: {{SECRET: {secret}}}}}
  - {{name: of-the-agent, agent: walled, prompt: go}}
  - {{name: of-the-step, agent: walled, prompt: go, sandbox: none}}
  - {{name: of-the-persona, persona: linked, prompt: go, sandbox: none}}
  - {{name: a-copy, persona: linked, prompt: go, isolation_strategy: directory}}
  - {{name: a-command, command: {look}, sandbox: bubblewrap, env: {{SECRET: {secret}}}}}
  - {{name: after, needs: [of-the-persona], agent: do, prompt: 'cat work.txt > seen'}}
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run, without a sandbox and on overlays by default."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "secret").write_text("secret")
    quoted = '"' + LOOK.strip().replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    text = PLACES.format(look=quoted, secret=folder / "secret")
    more, steps = text.split("steps:")
    return ran(make_repo(folder / "repo"), f"steps:{steps}", more=more, look=LOOK)


def test_the_nearest_word_on_the_wall_wins(places: Ran) -> None:
    assert {step: places.worker(step)["output"].split()[0] for step in places.statuses if step != "after"} == {
        "of-the-run": "open",
        "of-the-agent": "shut",
        "of-the-step": "open",
        "of-the-persona": "open",
        "a-copy": "shut",
        "a-command": "shut",
    }


def test_the_nearest_word_on_the_workspace_wins(places: Ran) -> None:
    assert places.worker("of-the-persona")["output"].split()[1:] == ["plain", "linked"]
    assert places.worker("a-copy")["output"].split()[1:] == ["plain", "apart"]
    # Without a sandbox only root can have an overlay; for others it is a worktree, as with `auto`.
    assert places.worker("of-the-step")["output"].split()[1:] in (["overlay", "apart"], ["plain", "linked"])
    assert places.worker("of-the-agent")["output"].split()[2] == "apart"


def test_the_work_of_each_is_kept_and_built_on_alike(places: Ran) -> None:
    steps = [step for step in places.statuses if step != "after"]

    assert places.said.code == 0, places.said.err
    assert {places.shown(step, "work.txt") for step in steps} == {"x"}
    assert places.shown("after", "seen") == "x"


def test_every_wall_of_the_run_is_told_where_it_is_not_the_runs(places: Ran) -> None:
    """Neither a weaker sandbox than the reader expects nor a stronger one may be silent."""
    assert places.report["wall"].startswith("none")
    assert "bubblewrap" in places.report["wall"] or any("bubblewrap" in note for note in places.report["notes"])


def test_one_step_without_a_wall_is_told_on_every_face(repo: Path) -> None:
    steps = "steps: [{name: free, agent: do, prompt: 'echo x > x', sandbox: none}, {name: held, agent: do, prompt: 'echo x > x'}]"

    done = ran(repo, steps, runtime="")

    assert done.said.code == 0
    told = [note for note in done.report["notes"] if "free" in note and "none" in note]
    assert told, done.report["notes"]
    assert told[0] in done.said.err
