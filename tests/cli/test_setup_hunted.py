"""Set-up from the command line in broken repositories and checkouts."""

from pathlib import Path

import pytest

from tests.cli.conftest import Shoal
from tests.cli.test_setup_run import committed, document, files_of, ran, workers
from tests.conftest import git

AGENT = "cat .env; echo y > mine; echo more >> .env"


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
def test_a_file_of_the_checkout_stays_out_of_commits_though_the_base_has_one_there(
    shoal: Shoal, repo: Path, strategy: str
) -> None:
    committed(repo, {".env": "tracked\n", "conf/a": "1\n"})
    git(repo, "rm", "-rq", "--cached", ".env", "conf")
    (repo / "conf/a").unlink()
    (repo / "conf").rmdir()
    for name, text in {".gitignore": "conf\n.env\n", ".env": "secret\n", "conf": "secret\n"}.items():
        (repo / name).write_text(text)
    (repo / ".worktreeinclude").write_text("conf\n.env\n")

    (worker,) = workers(ran(shoal, repo, document(None, AGENT, isolation_strategy=strategy)))

    assert (worker["status"], worker["output"]) == ("succeeded", "tracked\n"), worker
    assert git(repo, "show", f"{worker['branch']}:.env") == "tracked\nmore"
    assert files_of(repo, worker) == {"mine", ".env"}


def test_an_empty_list_of_files_in_the_checkout_is_a_list(shoal: Shoal, repo: Path) -> None:
    committed(repo, {".gitignore": ".env\n", ".worktreeinclude": ".env\n"})
    (repo / ".env").write_text("secret\n")
    (repo / ".worktreeinclude").write_text("")

    (worker,) = workers(ran(shoal, repo, document(None, AGENT)))

    assert "secret" not in worker["output"]


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
def test_a_file_in_the_place_of_a_folder_that_set_up_took_away_is_the_agents_work(
    shoal: Shoal, repo: Path, strategy: str
) -> None:
    committed(repo, {"many/c/d": "1\n", "many/e": "2\n"})

    text = document("rm -r many/c", "echo mine > many/c", isolation_strategy=strategy)
    (worker,) = workers(ran(shoal, repo, text))

    assert worker["status"] == "succeeded", worker
    assert git(repo, "show", f"{worker['branch']}:many/c") == "mine"
    assert git(repo, "show", f"{worker['branch']}:many/e") == "2"
