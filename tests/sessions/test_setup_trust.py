"""Set-up on agents' work has no more rights than they have, and only the user names files of the checkout."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.contract import CommandContract
from shoal.model.plan import Loop, Step
from shoal.model.policy import Network
from shoal.model.setup import Setup
from shoal.model.status import Status
from tests.acting import ran, step
from tests.conftest import git

NET = "readlink /proc/self/ns/net"
SETUP = Setup(commands=("sh ./install.sh",), network=Network.HOST)
HOSTILE = f"printf 'echo evil > who; {NET} > net\\n' > install.sh"
LOCK = "echo '{}' > package-lock.json"


@pytest.fixture
def host() -> str:
    return str(Path("/proc/self/ns/net").readlink())


@pytest.fixture(autouse=True)
def install(repo: Path) -> None:
    (repo / "install.sh").write_text(f"echo user > who; {NET} > net\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "install")


def after(script: str = "cat who net", **task: object) -> Step:
    return replace(step("two", script, **{"setup": SETUP, **task}), needs=("one",))  # type: ignore[arg-type]


async def test_it_runs_what_the_user_committed_and_not_what_an_earlier_agent_wrote(repo: Path, host: str) -> None:
    """Also where nobody has made the layer of the run's base yet."""
    report = await ran(repo, step("one", HOSTILE), after())

    (worker,) = report.steps[1].worker_results
    assert worker.output == f"user\n{host}\n", worker


@pytest.mark.parametrize("how", ["lock", "each", "worktree"])
async def test_what_an_earlier_agent_wrote_runs_with_the_agents_own_network(repo: Path, host: str, how: str) -> None:
    setup = replace(SETUP, each=True) if how == "each" else SETUP
    strategy = "worktree" if how == "worktree" else "overlay"

    report = await ran(repo, step("one", f"{HOSTILE}; {LOCK}"), after(setup=setup), strategy=strategy)

    (worker,) = report.steps[1].worker_results
    assert worker.output.startswith("evil\n"), worker
    assert host not in worker.output
    assert any("without a network" in note for note in report.notes) is (how != "lock")


async def test_it_keeps_its_network_where_the_agent_has_one_itself(repo: Path, host: str) -> None:
    report = await ran(repo, step("one", f"{HOSTILE}; {LOCK}"), after(network=Network.HOST))

    assert report.steps[1].worker_results[0].output == f"evil\n{host}\n"


async def test_it_keeps_its_network_where_the_user_lets_what_agents_wrote_run(repo: Path, host: str) -> None:
    report = await ran(repo, step("one", f"{HOSTILE}; {LOCK}"), after(allow_executable_config=True))

    assert report.steps[1].worker_results[0].output == f"evil\n{host}\n"


async def test_a_base_that_the_user_names_is_trusted_but_not_what_a_later_round_builds_on(
    repo: Path, host: str
) -> None:
    git(repo, "branch", "named")
    script = f"cat who net; {HOSTILE}; {LOCK}"
    rounds = replace(
        step("one", script, setup=SETUP), base="named", loop=Loop(until="loop.round == 2", most=2, must_hold=False)
    )

    first = await ran(repo, replace(rounds, loop=None))
    again = await ran(repo, rounds)

    assert first.steps[0].worker_results[0].output == f"user\n{host}\n"
    (worker,) = again.steps[0].worker_results
    assert worker.output.startswith("evil\n"), worker
    assert host not in worker.output


async def test_a_set_up_that_misses_its_network_says_how_it_gets_one(repo: Path) -> None:
    hostile = step("one", f"echo 'exit 3' > install.sh; {LOCK}")

    report = await ran(repo, hostile, after())

    (worker,) = report.steps[1].worker_results
    assert worker.status is Status.FAILED
    assert "it ran on the work of earlier agents" in (worker.error or "")
    assert "`allow_executable_config: true`" in (worker.error or "")


async def test_an_agent_that_names_files_of_the_checkout_is_not_given_them(repo: Path) -> None:
    """Neither in a later step, nor in a run that starts from its branch."""
    (repo / ".git/info/exclude").write_text(".env\n")
    (repo / ".env").write_text("s3cr3t\n")

    first = await ran(repo, step("one", "echo .env > .worktreeinclude"), replace(after("cat .env"), needs=("one",)))
    branch = first.steps[0].worker_results[0].branch
    second = await ran(repo, step("three", "cat .worktreeinclude .env"), base=branch)
    git(repo, "branch", "mine", branch or "")
    third = await ran(repo, step("four", "cat .env"), base="mine")

    assert "s3cr3t" not in first.steps[1].worker_results[0].output
    assert second.steps[0].worker_results[0].output == ".env\n"
    assert third.steps[0].worker_results[0].output == "s3cr3t\n", "a branch of the user's is the user's word"


async def test_a_check_of_the_work_does_not_give_it_the_network_of_set_up(repo: Path, host: str) -> None:
    check = CommandContract(type="test_suite", command=("sh", "-c", "cat who net; exit 1"))
    work = replace(step("one", f"{HOSTILE}; {LOCK}", setup=SETUP), contracts=(check,))

    report = await ran(repo, work)

    (checked,) = report.steps[0].worker_results[0].checks
    assert "evil" in checked.message
    assert host not in checked.message
