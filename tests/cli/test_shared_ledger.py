"""Two clones, as on two machines, whose runs are in one ledger on a PostgreSQL server."""

import json
from pathlib import Path

from tests.cli.conftest import TWO_AGENTS, shoal_in
from tests.conftest import git
from tests.postgres import Server

STORE = TWO_AGENTS.replace("runtime: {", "runtime: {store: {from: LEDGER, repository: app}, ")


def test_two_clones_share_a_ledger_that_no_file_has_the_password_of(repo: Path, tmp_path: Path, server: Server) -> None:
    clone = tmp_path / "clone"
    git(repo, "clone", "-q", str(repo), str(clone))
    for place in (repo, clone):
        (place / "shoal.yaml").write_text(STORE.replace("app", tmp_path.name))
    here, there = shoal_in(repo), shoal_in(clone)

    first = here("run", "shoal.yaml", "both", "--json", LEDGER=server.url)
    second = there("run", "shoal.yaml", "both", "--json", LEDGER=server.url)

    runs = [json.loads(said.out)["run"] for said in (first, second)]
    assert (first.code, second.code) == (0, 0), first.err + second.err
    for shoal in (here, there):
        for run in runs:
            assert json.loads(shoal("status", run, "--json", LEDGER=server.url).out)["status"] == "succeeded"
        assert "I am one" in shoal("logs", runs[0], LEDGER=server.url).out
    refused = here("status")
    assert (refused.code, "set LEDGER to" in refused.err) == (5, True)
    for place in (repo, clone):
        assert not (place / ".shoal" / "ledger.db").exists()
        files = [file.read_bytes() for file in (place / ".shoal").glob("*") if file.is_file()]
        assert not any(b":word@" in content for content in files)


def test_a_repository_with_a_ledger_of_files_keeps_it(repo: Path, server: Server) -> None:
    (repo / "shoal.yaml").write_text(TWO_AGENTS)
    shoal = shoal_in(repo)
    assert shoal("run", "shoal.yaml", "both").code == 0

    refused = shoal("run", "shoal.yaml", "both", SHOAL_STORE=server.url)

    assert refused.code == 2
    assert "which another store would hide" in refused.err
    assert shoal("status").code == 0


def test_a_wrong_address_is_refused_before_anything_is_recorded(repo: Path, server: Server) -> None:
    (repo / "shoal.yaml").write_text(TWO_AGENTS)

    refused = shoal_in(repo)("run", "shoal.yaml", "both", SHOAL_STORE=server.url.replace(":word@", ":wrong@"))

    assert refused.code == 3
    assert "password authentication failed" in refused.err
    assert not (repo / ".shoal" / "store.json").exists()
