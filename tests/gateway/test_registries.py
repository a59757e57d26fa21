"""pip, npm and git in a sandbox on `network: gateway`, against TLS servers of the test that `hosts` lists."""

import base64
import contextlib
import functools
import hashlib
import http.server
import io
import json
import shutil
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pip

from shoal.model.events import PermissionDecided
from shoal.model.permissions import Permissions
from shoal.model.policy import Network
from shoal.model.status import Status
from shoal.store.paths import StatePaths
from shoal.store.reader import read_session
from tests.acting import assert_nothing_left, ran, shown, step
from tests.cli.conftest import SHOAL
from tests.conftest import git
from tests.gateway.test_connect import make_certificate

# npm's own `cafile` is for machines whose npm has one in its global settings.
TRUST = "export PIP_CERT=$PWD/cert NODE_EXTRA_CA_CERTS=$PWD/cert npm_config_cafile=$PWD/cert GIT_SSL_CAINFO=$PWD/cert\n"
INSTALL = """set -ex
PYTHONPATH=pip.zip python3 -m pip install --no-deps --target wheels -i https://ADDRESS/wheels/ greet
npm install --no-audit --no-fund --registry https://ADDRESS/npm/ greet
git clone https://LOCAL/greet.git clone
{ PYTHONPATH=wheels python3 -c 'import greet; print(greet.TEXT)'; node -p 'require("greet")'; cat clone/greet.txt; } > seen
rm -rf wheels node_modules clone
"""
DENIED = """
export PYTHONPATH=pip.zip
python3 -m pip install --retries 0 --no-deps --target wheels -i https://packages.example.org/wheels/ greet
npm install --fetch-retries 0 --registry https://npm.example.org/ greet
git clone https://git.example.org/greet.git
git clone https://127.0.0.2:PORT/greet.git
git clone https://127.0.0.1:OTHER/greet.git
true
"""


class _QuietFiles(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def serving(folder: Path, context: ssl.SSLContext) -> Iterator[int]:
    """Serve the files of *folder* over https on a port of loopback."""
    handler = functools.partial(_QuietFiles, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def make_wheel(index: Path) -> None:
    """Make an index for pip with one package."""
    index.mkdir(parents=True)
    about = "greet-1.0.dist-info"
    files = {
        "greet.py": "TEXT = 'from pip'\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: greet\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(index / "greet-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    (index / "index.html").write_text('<a href="greet-1.0-py3-none-any.whl">greet-1.0-py3-none-any.whl</a>')


def make_package(served: Path, port: int) -> None:
    """Make a registry for npm with one package."""
    about = {"name": "greet", "version": "1.0.0", "main": "index.js"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in (("package.json", json.dumps(about)), ("index.js", "module.exports = 'from npm'\n")):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (served / "greet-1.0.0.tgz").write_bytes(packed.getvalue())
    digest = base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
    found = {"tarball": f"https://127.0.0.1:{port}/greet-1.0.0.tgz", "integrity": f"sha512-{digest}"}
    document = {"name": "greet", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**about, "dist": found}}}
    (served / "npm").mkdir()
    (served / "npm/greet").write_text(json.dumps(document))


def make_upstream(served: Path, scratch: Path) -> None:
    """Make a repository that git clones from plain files."""
    scratch.mkdir()
    git(scratch, "init", "-q", "-b", "main")
    (scratch / "greet.txt").write_text("from git\n")
    git(scratch, "add", ".")
    git(scratch, "commit", "-qm", "Greet")
    git(scratch, "clone", "-q", "--bare", ".", str(served / "greet.git"))
    git(served / "greet.git", "update-server-info")


@contextlib.contextmanager
def registries(repo: Path, folder: Path) -> Iterator[int]:
    """Serve all three, and give the repository what trusts them, and pip."""
    folder.mkdir()
    context = make_certificate(folder)
    shutil.copy(folder / "cert", repo)
    shutil.make_archive(str(repo / "pip"), "zip", Path(pip.__file__).parents[1], "pip")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "Trust the registries")
    served = folder / "served"
    make_wheel(served / "wheels/greet")
    make_upstream(served, folder / "upstream")
    with serving(served, context) as port:
        make_package(served, port)
        yield port


async def test_pip_npm_and_git_work_through_listed_hosts(repo: Path, tmp_path: Path) -> None:
    with registries(repo, tmp_path / "registries") as port:
        listed = Permissions(hosts=(f"127.0.0.1:{port}", f"localhost:{port}"))
        script = TRUST + INSTALL.replace("ADDRESS", f"127.0.0.1:{port}").replace("LOCAL", f"localhost:{port}")
        report = await ran(repo, step("work", script, network=Network.GATEWAY, permissions=listed))

    (result,) = report.steps[0].worker_results
    assert result.status is Status.SUCCEEDED, (result.error, result.output)
    assert shown(repo, result, "seen") == "from pip\nfrom npm\nfrom git"
    assert_nothing_left(repo)


async def test_hosts_that_are_not_listed_are_denied_with_the_line_to_add(repo: Path, tmp_path: Path) -> None:
    with registries(repo, tmp_path / "registries") as port, contextlib.ExitStack() as more:
        other = more.enter_context(serving(tmp_path / "registries/served", make_certificate(tmp_path)))
        script = TRUST + DENIED.replace("PORT", str(port)).replace("OTHER", str(other))
        listed = Permissions(hosts=(f"127.0.0.1:{port}",))
        report = await ran(repo, step("work", script, network=Network.GATEWAY, permissions=listed))

    (result,) = report.steps[0].worker_results
    events = [recorded.event for recorded in read_session(StatePaths.of(repo), result.session)]
    rules = [event.rule for event in events if isinstance(event, PermissionDecided) and not event.allowed]
    log = subprocess.run([SHOAL, "logs", result.session], cwd=repo, capture_output=True, text=True, check=True).stdout
    names = ("packages.example.org:443", "npm.example.org:443", "git.example.org:443", f"127.0.0.2:{port}")
    for name in names:
        assert f"to allow it, add `hosts: [{name}]`" in rules, rules
        assert f"hosts: [{name}]" in log, log
    assert len(rules) == len(names)
    assert f"127.0.0.1 port {other}" in log  # only what is listed listens there
