"""`shoal node install`: from a host with a Python and nothing else to a node, and back."""

import asyncio
import contextlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import __version__
from shoal.errors import BadInput
from shoal.executors.carriers.kind import NodeUnavailable
from shoal.executors.node_install import WheelSource, install_node, uninstall_node
from shoal.executors.own_wheel import build_wheel
from tests.executors.hosts import Hosts, TestHost, open_hosts

NODE = ".local/share/shoal/node"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels that Shoal needs, as a person would download them."""
    folder = tmp_path_factory.mktemp("wheels")
    own = build_wheel(tmp_path_factory.mktemp("own"))
    words = (sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "-d", str(folder), str(own))
    subprocess.run(words, check=True)
    return folder


@pytest.fixture(scope="module")
def hosts(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts that have no Shoal, and no way to a package index; the wheels come before their network."""
    with open_hosts(tmp_path_factory.mktemp("hosts"), count=2, has_shoal=False) as found:
        yield found


def version_on(host: TestHost, link: str) -> str:
    program = host.home / NODE / link / "bin" / "shoal"
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def test_a_wheel_of_ourselves_has_all_files_and_is_always_the_same(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    wheel = build_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        record = packed.read(f"shoal-{__version__}.dist-info/RECORD").decode().splitlines()

    assert build_wheel(tmp_path / "again").read_bytes() == wheel.read_bytes()
    assert {"shoal/py.typed", "shoal/sessions/seal.sh", "shoal/executors/install_program.py"} <= set(names)
    assert [line.split(",")[0] for line in record] == names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.alone
@pytest.mark.deep
async def test_a_bare_host_becomes_a_node_and_a_second_time_changes_nothing(hosts: Hosts, wheels: Path) -> None:
    (host, _) = hosts.hosts
    (host.home / ".bashrc").write_text("echo welcome; echo '{}'\n")
    source = WheelSource(folder=wheels)

    first = await install_node("node1", hosts.environ, python=sys.executable, wheels=source)
    second = await install_node("node1", hosts.environ, python=sys.executable, wheels=source)

    assert (first.is_new, second.is_new) == (True, False)
    assert first.build == second.build
    assert (first.offer.version, first.offer.host) == (__version__, host.name if host.link else first.offer.host)
    assert version_on(host, "current") == version_on(host, __version__) == f"shoal {__version__}"
    assert sorted(path.name for path in (host.home / NODE).iterdir()) == [__version__, "builds", "current"]


@pytest.mark.alone
@pytest.mark.deep
async def test_wheels_are_downloaded_here_for_the_python_there(hosts: Hosts, wheels: Path) -> None:
    environ = {**hosts.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": "/dev/null"}

    node = await install_node("node1", environ, python=sys.executable, wheels=WheelSource(is_sent=True))

    assert version_on(hosts.hosts[0], "current") == f"shoal {node.version}"


@pytest.mark.alone
@pytest.mark.deep
async def test_a_killed_installation_is_begun_again(hosts: Hosts, wheels: Path) -> None:
    (_, host) = hosts.hosts
    steps: list[str] = []
    builds = host.home / NODE / "builds"

    async with asyncio.TaskGroup() as group:
        source = WheelSource(folder=wheels)
        install = install_node("node2", hosts.environ, python=sys.executable, wheels=source, on_step=steps.append)
        running = group.create_task(fails(install))
        async with asyncio.timeout(60):
            while not any(builds.glob("*/bin/python")):
                await asyncio.sleep(0.005)
        host.kill_all()

    assert running.result()
    assert not (host.home / NODE / "current").exists()
    await install_node("node2", hosts.environ, python=sys.executable, wheels=source)
    assert version_on(host, "current") == f"shoal {__version__}"


async def fails(work: object) -> bool:
    with contextlib.suppress(NodeUnavailable):
        await work  # type: ignore[misc]
        return False
    return True


@pytest.mark.alone
@pytest.mark.deep
async def test_an_uninstalled_host_has_nothing_of_it(hosts: Hosts, wheels: Path) -> None:
    (host, _) = hosts.hosts
    await install_node("node1", hosts.environ, python=sys.executable, wheels=WheelSource(folder=wheels))

    removed = await uninstall_node("node1", hosts.environ)

    assert [name.startswith(f"{__version__}-") for name in removed] == [True]
    assert not (host.home / NODE).exists()
    with pytest.raises(NodeUnavailable, match="no such Python"):
        await uninstall_node("node1", hosts.environ, python="python9")


@pytest.mark.alone
@pytest.mark.deep
async def test_a_host_without_an_index_is_told_what_to_do(hosts: Hosts, tmp_path: Path) -> None:
    (host, _) = hosts.hosts
    (host.home / ".bashrc").write_text("export PIP_RETRIES=0 PIP_TIMEOUT=1 PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1\n")
    with pytest.raises(NodeUnavailable) as caught:
        await install_node("node1", hosts.environ, python=sys.executable)
    assert "--send-wheels" in caught.value.remedy
    assert not (host.home / NODE / "current").exists()

    with pytest.raises(BadInput, match="has no wheels"):
        await install_node("node1", hosts.environ, python=sys.executable, wheels=WheelSource(folder=tmp_path))


@pytest.mark.parametrize("python", ["-c", "", "a b"])
async def test_a_python_is_a_program(python: str) -> None:
    with pytest.raises(BadInput, match="names no program"):
        await install_node("node1", {}, python=python)


def test_an_old_python_says_that_it_is_too_old() -> None:
    """The program begins with nothing that an old Python could not read."""
    import ast

    from shoal.executors.node_install import PROGRAM

    ast.parse(PROGRAM.read_text(), feature_version=(3, 7))
