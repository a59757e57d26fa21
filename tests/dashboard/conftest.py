"""A dashboard of a scratch repository, opened."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.cli.conftest import Shoal, shoal_in
from tests.dashboard.serving import PIPELINE, SECONDS, Dashboard, serving


@pytest.fixture
def shoal(repo: Path) -> Shoal:
    """The command, in the repository."""
    return shoal_in(repo)


@pytest.fixture
def dashboard(repo: Path) -> Iterator[Dashboard]:
    """A dashboard whose link was opened."""
    (repo / "shoal.yaml").write_text(PIPELINE)
    with serving(repo) as served:
        served.open()
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    path = shutil.which("chromium")
    assert path is not None, "run `sh scripts/browser`"
    with sync_playwright() as playwright:
        expect.set_options(timeout=SECONDS * 1000)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
