"""A pytest plugin: a run with a skipped test has failed (`make test` loads it when CI is set)."""

import pytest


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if the reporter counted a skip; xdist's workers have no reporter."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not reporter.stats.get("skipped"):
        return
    for report in reporter.stats["skipped"]:
        reporter.write_line(f"\nskipped, which counts as failed: {report.nodeid}: {report.longrepr}", red=True)
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
