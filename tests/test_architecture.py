"""The shape of the code, held by a test: who may import whom, who may touch the world, how long a file may grow."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src" / "shoal"

# A room may import the rooms named here, itself, and nothing else of ours.
LOW = "errors model"
MIDDLE = f"{LOW} proc patterns pipeline adapters sandboxes git store"
UPPER = f"{MIDDLE} agent workspaces limits gateway talk databases"
EVERYTHING = f"{UPPER} sessions contracts executors steps merge runs nodes doctor dashboard mcp"
MAY_IMPORT = {
    "errors": "",
    "model": "errors",
    "proc": LOW,
    "patterns": LOW,
    "pipeline": f"{LOW} sandboxes workspaces",
    "adapters": LOW,
    "sandboxes": LOW,
    "store": f"{LOW} proc",
    "git": f"{LOW} proc",
    "gateway": f"{LOW} proc store",
    "talk": f"{LOW} store gateway",
    "agent": MIDDLE,
    "databases": f"{LOW} proc store gateway",
    "workspaces": f"{LOW} proc sandboxes git store",
    "limits": MIDDLE,
    "contracts": f"{UPPER} sessions",
    "sessions": f"{UPPER} contracts",
    "executors": f"{UPPER} sessions contracts",
    "steps": f"{UPPER} sessions contracts executors",
    "merge": f"{UPPER} sessions contracts steps",
    "runs": f"{UPPER} sessions contracts executors steps merge",
    "nodes": f"{UPPER} sessions contracts executors steps runs",
    "doctor": f"{UPPER} sessions runs",
    "dashboard": f"{LOW} proc store",
    "mcp": f"{LOW} proc dashboard",
    "testing": f"{UPPER} sessions contracts steps merge runs",
    "cli": EVERYTHING,
    "__init__": EVERYTHING,
    "__main__": "cli",
}

# What touches the world, and the rooms or files that may.
ONE_DOOR = {
    "subprocess": "proc",
    "multiprocessing": "proc",
    "asyncio.create_subprocess_exec": "proc executors/carriers/ray_relay.py",
    "asyncio.create_subprocess_shell": "proc",
    "os.fork": "proc",
    "os.forkpty": "proc",
    "os.posix_spawn": "proc",
    "os.system": "proc",
    "os.popen": "proc",
    "os.kill": "proc",
    "os.killpg": "proc",
    "signal.pidfd_send_signal": "proc",
    "sqlite3": "store",
    "psycopg": "store databases",
    "psycopg_pool": "databases",
    "ruamel": "pipeline",
    "yaml": "pipeline",
    "typer": "cli",
    "rich": "cli",
    "textual": "cli",
    "opentelemetry": "cli/telemetry.py",
    "argparse": "cli testing/model/__main__.py",
    "print": "cli testing/model/__main__.py",
    "ctypes": "workspaces/mount.py sandboxes/seccomp.py limits",
    "os.environ": (
        "cli sessions runs doctor git gateway/process.py store/choice.py executors/carriers/ray.py"
        " executors/carriers/ray_relay.py"
    ),
    "os.getenv": "cli sessions runs doctor git",
    "pydantic_ai": "agent",
    "acp": "sessions/acp/turn.py",
    "stamina": "patterns/retry.py",
    "starlette": "dashboard mcp/http.py",
    "uvicorn": "dashboard",
    "mcp": "mcp",
    "ray": "executors/carriers/ray_cluster.py",
}

# Run by path, most of them inside a sandbox, and never imported.
PROGRAMS = {
    "sandboxes/launcher.py",
    "limits/watcher.py",
    "adapters/scripted_agent.py",
    "contracts/json_schema_program.py",
    "executors/install_program.py",
    "gateway/listen_program.py",
    "talk/talk_program.py",
    "databases/server_program.py",
    "doctor/attack.py",
}

HEAVY = (
    "acp asyncio ctypes mcp opentelemetry psycopg pydantic pydantic_ai ray rich ruamel sqlite3 subprocess textual typer"
)
NOT_ROOMS = {"contract", "acceptance", "escapes", "clients", "faults"}

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PUBLIC_TWICE = {"Retry", "Workspace"}
"""Names that users import from two packages."""

EVERY_FILE = sorted(SRC.rglob("*.py"))


def place(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports(path: Path) -> Iterator[str]:
    """Each imported name in full: `from os import environ` is `os.environ`."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module, names, 0):
                yield from (f"{module}.{alias.name}" for alias in names)


def uses(path: Path) -> Iterator[str]:
    """Each imported name, each `module.attribute` and each function called by its bare name."""
    yield from imports(path)
    for node in ast.walk(tree(path)):
        match node:
            case ast.Attribute(ast.Name(base), attribute):
                yield f"{base}.{attribute}"
            case ast.Call(ast.Name(name)):
                yield name


def is_below(name: str, top: str) -> bool:
    return name == top or name.startswith(f"{top}.")


def may_enter(path: Path, rooms: str) -> bool:
    return bool({room_of(path), place(path)} & set(rooms.split()))


def faults(found_in: Callable[[Path], Iterator[str]]) -> list[str]:
    """List what is wrong, with the file it is in: one test for all files, for there are many of them."""
    return [f"{place(path)}: {fault}" for path in EVERY_FILE for fault in found_in(path)]


def test_a_module_imports_only_the_rooms_below_it() -> None:
    def upward(path: Path) -> Iterator[str]:
        allowed = {room_of(path), "__version__", *MAY_IMPORT[room_of(path)].split()}
        ours = [name.split(".") for name in imports(path) if is_below(name, "shoal")]
        return (f"{'.'.join(parts)} is not below" for parts in ours if len(parts) > 1 and parts[1] not in allowed)

    assert faults(upward) == []


def test_a_module_touches_the_world_only_through_its_own_door() -> None:
    def trespasses(path: Path) -> Iterator[str]:
        for name in sorted(set(uses(path))) if place(path) not in PROGRAMS else ():
            for effect, rooms in ONE_DOOR.items():
                if is_below(name, effect) and not may_enter(path, rooms):
                    yield f"{name} belongs to {rooms}"

    assert faults(trespasses) == []


def test_a_module_is_small_and_says_what_lives_in_it() -> None:
    def shapeless(path: Path) -> Iterator[str]:
        module = tree(path)
        if not ast.get_docstring(module):
            yield "open the module with one sentence"
        if len(path.read_text().splitlines()) > 400:
            yield "over 400 lines: find the second noun and give it a file"
        functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        long = (node.name for node in functions if (node.end_lineno or 0) - node.body[0].lineno >= 50)
        yield from (f"{name} is over 50 lines" for name in long)

    assert faults(shapeless) == []


def test_a_module_starts_work_only_in_ways_that_end() -> None:
    """Tasks belong to a `TaskGroup`, `preexec_fn` forks the whole coordinator, relative imports hide their room."""
    assert faults(endless) == []


def endless(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        match node:
            case ast.ImportFrom(level=level) if level:
                yield "a relative import"
            case ast.keyword(arg="preexec_fn"):
                yield "preexec_fn"
            case ast.Attribute(ast.Name("asyncio" | "loop") | ast.Call(), "create_task" | "ensure_future"):
                yield "a task without a TaskGroup"
            case ast.Attribute(ast.Name("asyncio"), "gather"):
                yield "asyncio.gather"
            case ast.ImportFrom("asyncio", names) if {"create_task", "ensure_future", "gather"} & {
                n.name for n in names
            }:
                yield "a task function of asyncio by its bare name"


def test_programs_are_run_and_never_imported() -> None:
    """They run where the package may not be readable, so they import nothing of it either."""
    dotted = {f"shoal.{name.removesuffix('.py').replace('/', '.')}" for name in PROGRAMS}
    importers = [place(path) for path in EVERY_FILE for name in imports(path) for top in dotted if is_below(name, top)]
    programs = [path for path in EVERY_FILE if place(path) in PROGRAMS]

    assert importers == []
    assert [name for path in programs for name in imports(path) if is_below(name, "shoal")] == []


def test_the_tests_mirror_the_rooms() -> None:
    rooms = {room_of(path) for path in EVERY_FILE} - {"__init__", "__main__", "errors"}
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    tested = folders | {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")}

    assert rooms - tested == set(), "rooms without tests"
    assert folders - rooms - NOT_ROOMS == set(), "tests of no room"


@pytest.mark.parametrize("module", ["shoal", "shoal.cli.main"])
def test_importing_is_light(module: str) -> None:
    """`shoal --version` and `status` feel instant because heavy modules are imported where they are used."""
    script = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert set(HEAVY.split()) & set(done.stdout.split()) == set()


def test_architecture_md_names_files_and_functions_that_exist() -> None:
    text = (TESTS.parent / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^([a-z_]+/[\w/]+\.py) +([\w.]+) ", text, re.MULTILINE)

    missing = [f"{path}: {name}" for path, name in rows if not defines(SRC / path, name)]

    assert len(rows) > 35
    assert missing == []
    named = re.findall(r"`([a-z_]+/[\w/]+\.(?:py|sh))`", text)
    assert [path for path in named if not (SRC / path).is_file() and not (TESTS.parent / path).is_file()] == []


def defines(path: Path, name: str) -> bool:
    """Say whether *name*, a function, a class or `Class.method`, is defined in *path*."""
    nodes = tree(path).body if path.is_file() else []
    for part in name.split("."):
        found = [node for node in nodes if isinstance(node, DEFINITIONS) and node.name == part]
        if not found:
            return False
        nodes = found[0].body
    return True


def test_a_class_name_lives_in_one_module() -> None:
    homes: dict[str, set[str]] = {}
    for path in EVERY_FILE:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and place(path) not in PROGRAMS:
                homes.setdefault(node.name, set()).add(place(path))

    assert {
        name: sorted(modules) for name, modules in homes.items() if len(modules) > 1 and name not in PUBLIC_TWICE
    } == {}


PARTICIPLE = re.compile(
    r"_*([a-z]+ed|told|kept|held|made|taken|brought|said|given|found|begun|known|seen|done|spelt|meant|shown|laid|had|got"
    r"|gone|sent|built|lost|paid|heard|ran|sought|chosen|written|broken|drawn|spoken|hidden|torn|spent|caught|met|grown)"
    r"(_[a-z_]+)?"
)
NOT_PARTICIPLES = ("feed", "need", "seed", "embed", "speed", "proceed", "exceed")
PUBLIC_NAMES = {
    "patterns/combine.py: settled",
    "patterns/limiter.py: told",
    "patterns/source.py: chunked",
    "runs/patterns.py: settled",
    "testing/model/server.py: received",
    "model/merge.py: one",
    "agent/sandboxed.py: sandboxed_tools",
}
"""Names that users' programs or recorded events rely on."""
VAGUE = {"one", "told"}


def unclear_names(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) if is_participle(node):
                fault = f"{name}() is named by a participle; use the imperative"
            case ast.Name(name, ast.Store()) | ast.arg(name) if name in VAGUE:
                fault = f"the variable {name!r} does not say what it is"
            case _:
                continue
        if f"{place(path)}: {name}" not in PUBLIC_NAMES:
            yield f"{node.lineno}: {fault}"


def test_functions_are_verbs_and_variables_say_what_they_are() -> None:
    assert faults(unclear_names) == []


def is_participle(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether a function is named like `told`; context managers and properties may be."""
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    is_allowed = "contextmanager" in decorators or "property" in decorators
    name = node.name.lstrip("_").split("_")[0]
    return not is_allowed and name not in NOT_PARTICIPLES and PARTICIPLE.fullmatch(node.name) is not None


IMPORT_LINE = re.compile(r"^from (shoal[\w.]*|tests[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def test_programs_in_strings_import_what_exists() -> None:
    """No type checker reads them, so a rename leaves them behind."""
    root = Path(__file__).parents[1]
    missing: list[str] = []
    for path in sorted((root / "tests").rglob("*.py")):
        for module, names in IMPORT_LINE.findall(path.read_text()):
            base = root / ("src" if module.startswith("shoal") else "") / module.replace(".", "/")
            file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
            known = set(re.findall(r"\w+", file.read_text())) if file.is_file() else set()
            wanted = [name.split(" as ")[0].strip() for name in names.split(",")]
            gone = [
                name
                for name in wanted
                if name not in known and not (base / f"{name}.py").is_file() and not (base / name).is_dir()
            ]
            missing += [f"{path.name}: {module}.{name}" for name in gone]

    assert missing == []
