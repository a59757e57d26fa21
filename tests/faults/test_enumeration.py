"""Each durable effect of the source is passed by a scenario that is killed, or listed here with a reason."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from shoal.model.events import Event
from tests.faults.conftest import Undisturb
from tests.faults.points import GIT_READS, Kill
from tests.faults.scene import FOUR_TASKS, RUNTIME, THREE_TASKS, TWELVE_TASKS, VARIANTS, make_scene
from tests.test_architecture import EVERY_FILE, place, tree

NOT_PASSED = {
    "RunResumed": "recorded by the commands that resume; kills during recovery pass it",
    "SessionDiscarded": "recorded together with RunResumed, in one transaction",
    "AgentActed": "reported by real clients",
    "AgentMessaged": "recorded for `shoal send`",
    "ClientHeard": "reported by real clients",
    "ModelAnswered": "recorded of agents that ask a model through the gateway; a note that the next kill may lose",
    "ResourcesSampled": "a look at an agent; a note that the next kill may lose",
    "CheckpointKept": "recorded of agents that work for minutes",
    "SnapshotKept": "recorded when a person looks at running work",
    "Output": "printed by agents; a note that the next kill may lose together with its agent",
    "Waiting": "recorded when the host is short of something",
    "PermissionDecided": "recorded for agents that ask for permissions",
    "RequestIgnored": "recorded for files that are no requests",
    "RequestTaken": "recorded for requests to stop",
    "ClaimMade": "advice of an agent, which ends with its session: tests/talk/test_claims.py",
    "ClaimReleased": "advice of an agent, which ends with its session: tests/talk/test_claims.py",
    "NoteWritten": "recorded after a note was kept, which is a transaction of its own: tests/talk/test_notes.py",
    "TaskQueued": "recorded of queues, whose runs tests/steps/test_queues.py kills and resumes",
    "TaskTaken": "recorded of queues, whose runs tests/steps/test_queues.py kills and resumes",
    "OverlapSeen": "recorded when agents change the same files",
    "MessageSent": "recorded of agents that talk: tests/cli/test_talk.py",
    "MessagesTaken": "recorded of agents that talk: tests/cli/test_talk.py",
    "ChildSpawned": "recorded of agents that talk: tests/cli/test_talk.py",
    "TalkRefused": "recorded of agents that talk; nothing depends on it",
    "NodeChanged": "recorded of runs on nodes: tests/nodes kills nodes and coordinators",
    "WorkFetched": "recorded of runs on nodes: tests/nodes kills nodes and coordinators",
}
"""Kinds of events that the scenario does not record, and why no kill is placed around them."""
GIT_NOT_PASSED = {
    "bundle": "for an export, which writes beside its target and renames",
    "worktree": "for the strategy `worktree`",
    "commit-tree": "for merges with commits of their own, and snapshots",
    "hash-object": "for snapshots of plain folders, and resolved conflicts",
    "init": "for snapshots of plain folders",
    "add": "for snapshots of plain folders",
    "commit": "for snapshots of plain folders",
    "mktree": "for resolved conflicts",
    "write-tree": "for resolved conflicts and undo",
    "unpack-objects": "for small packs",
    "index-pack": "for packs that are gathered, and that nodes are sent",
    "config": "for mirrors on nodes, which are made again",
    "symbolic-ref": "for mirrors on nodes, which are made again",
    "fetch": "for partial clones",
    **({"checkout-index": "for layers over a base, which only root mounts on the host"} if os.geteuid() else {}),
}


EFFECTS = {
    *(
        "rename",
        "unlink",
        "rmdir",
        "mkdir",
        "symlink_to",
        "hardlink_to",
        "symlink",
        "write_text",
        "write_bytes",
        "touch",
    ),
    *("truncate", "rmtree", "copyfile", "copy2", "copytree", "copyfileobj", "mkdtemp", "mkstemp", "makedirs", "mkfifo"),
    *("mknod", "posix_fallocate", "TemporaryDirectory", "NamedTemporaryFile"),
}
AMBIGUOUS = {"remove", "replace", "link", "move"}
"""Effects where they are functions of `os` or `shutil`."""
FILES_NOT_PASSED = {
    "adapters/scripted_agent.py": "runs in a sandbox, as an agent",
    "cli/": "changes nothing of a run: a new file, which is made aside and renamed, a terminal, a scratch repository",
    "dashboard/": "removes its own socket",
    "databases/": "servers and sockets of sessions, by intent and record: tests/databases/test_kills.py",
    "doctor/": "works in a scratch folder, which the next doctor removes: tests/cli/test_doctor.py",
    "executors/carriers/ray.py": "a token, written before it is used",
    "executors/carriers/ssh_host.py": "folders for sockets, which the next run removes",
    "gateway/": "counts of what an account may still ask, and records of exchanges: a kill loses no more than the last;"
    " a renewed login is made aside and renamed: tests/gateway/test_logins.py",
    "executors/left_work.py:_import": "a temporary file with a pack, which a later start removes",
    "executors/take_work.py:take_work": "a temporary file with a pack, which a later start removes",
    "executors/install_program.py": "runs on another host: tests/executors/test_node_install.py",
    "executors/node_install.py": "works in a temporary folder",
    "git/closure.py:pack_closure": "marks a store that is not published yet, and is for partial clones",
    "git/commits.py:_store_object": "writes objects by their own names, before a ref needs them",
    "git/conflict_sides.py": "works in a temporary folder",
    "git/deliver.py:clear_stale_lock": "removes our lock of a dead delivery: tests/merge/test_merge_faults.py",
    "git/imports.py:release_abandoned": "clears up after kills: the sweeps check that nothing is left",
    "git/merge.py:_fifo": "works in a temporary folder",
    "git/merge.py:_sweep": "clears up after kills: tests/git/test_merge.py",
    "git/packs.py:write_pack": "into a temporary file, or one in a session directory, which goes with it",
    "git/packs.py:hold_pack_file": "a temporary file, which a later pack removes",
    "git/snapshot.py": "for plain folders",
    "limits/": "control groups, which the guard and the next start remove: tests/limits, tests/faults/test_orphans.py",
    "nodes/": "mirrors on nodes, made aside and renamed; tests/nodes kills nodes at any time",
    "runs/archive.py": "an export is renamed when it is whole; an import records last",
    "runs/clean.py": "removes what a command finds again: test_every_point_of_undo_and_clean",
    "runs/context.py:_with_recording": "makes the folder of a recording",
    "runs/history.py:remove_record": "removes what a command finds again: test_every_point_of_undo_and_clean",
    "runs/inspect_work.py": "for `shoal open`, which begins again",
    "runs/recovery.py": "clears up after kills: the sweeps check that nothing is left",
    "runs/raw_files.py:_archive": "writes a file aside, which the next archiving removes",
    "runs/resume.py:_drop_unfinished": "part of a recording; a session that is not recorded whole begins it again",
    "sessions/artifacts.py:keep_bytes": "makes a folder for results",
    "sessions/checkpoints.py:_take_files": "removes a pack that was imported; for agents that work for minutes",
    "sessions/clients.py": "works in a temporary folder",
    "sessions/credentials.py": "for real clients, in the private folder of a session, or renamed",
    "sessions/host_probe.py:_make": "makes device nodes once for each boot, and renames them",
    "sessions/keep_work.py:renew_folders": "for sessions with many folders in a kept overlay",
    "sessions/reuse.py": "for sessions that change nothing: tests/sessions/test_reuse.py",
    "sessions/saved_conversations.py": "for real clients; made aside and renamed",
    "sessions/session_dir.py:_own_folder": "a folder for locks, made once for each boot",
    "sessions/session_dir.py:_ports_held": "a lock, which a kill frees",
    "sessions/setup/project.py": "for set-up on the work of agents",
    "steps/children.py:hand_over": "made aside and renamed, in a session directory, which goes with its session",
    "store/choice.py:choose_store": "made aside and renamed, before the run begins: tests/store",
    "store/database.py:_back_up": "made aside and renamed, before a migration: tests/store",
    "store/database.py:_move_aside": "repairs: tests/store",
    "store/reserve.py:_reserve_inodes": "empty files, on disks with few inodes: tests/faults/test_machine.py",
    "store/reserve.py:release_reserve": "for full disks: tests/cli/test_full_disk.py",
    "store/known_repositories.py": "a list of the user's repositories, outside of them: tests/store",
    "store/notes.py:_open": "makes the state folder, if a note is the first that is kept in it",
    "store/paths.py:open_output": "for runs in the background",
    "store/rebuild.py": "repairs: tests/store/test_rebuild.py",
    "store/tokens.py": "a token for a server, which is made anew where it is missing: tests/mcp/test_http.py",
    "testing/": "for tests of users",
    "workspaces/base_checkouts.py:_whiten": "builds a layer that is not published yet",
    "workspaces/object_stores.py:_clear": "repairs a cache",
    "workspaces/object_stores.py:_extend_store": "builds a store that is not published yet",
    "workspaces/overlay.py:_rewrite": "for workspaces that stay mounted: tests/sessions/test_reuse.py",
    "workspaces/quota.py:_hold_bind": "makes folders of a session on a disk of its own",
    "workspaces/setup_layers.py:_within": "builds a layer that is not published yet",
    "workspaces/setup_layers.py:_write_file": "builds a layer that is not published yet",
    "workspaces/setup_layers.py:evict_setup": "removes a cache when it is too large",
    "workspaces/spares.py": "for sessions that change nothing: tests/workspaces/test_spares.py",
    "workspaces/worktree.py:_return_to_pool": "for worktrees without set-up: tests/workspaces/test_kinds.py",
    "workspaces/worktree.py:_take_from_pool": "for worktrees without set-up: tests/workspaces/test_kinds.py",
    "workspaces/worktree.py:_write_pointer": "for worktrees without set-up: tests/workspaces/test_kinds.py",
}
"""What changes files where no kill is placed, and why: a folder or file of the source, or a function of it."""


@pytest.mark.deep
def test_every_function_that_changes_files_is_passed_by_a_scenario_or_listed_with_a_reason(tmp_path: Path) -> None:
    sites = list_effects()
    passed = passed_sites(tmp_path)
    listed = {site: place for site in sites for place in FILES_NOT_PASSED if is_at(site, place)}

    assert sites - passed - set(listed) == set(), "functions that change files, and have no crash point"
    assert set(FILES_NOT_PASSED) - set(listed.values()) == set(), "functions that are gone"


ADDED = """
def keep(path):
    path.read_text()
    path.replace("a", "b")

async def lose(path):
    with open(path) as old, path.open("wb") as new:
        old.replace("a", "b")

class Files:
    def swap(self):
        os.replace(self.old, self.new)
"""


def test_a_function_that_changes_files_is_found() -> None:
    assert list(changing_functions(ast.parse(ADDED), "")) == ["lose", "swap"]


def is_at(site: str, where: str) -> bool:
    """Say whether *site* is in that folder, file or function."""
    return site.startswith(where) if where.endswith("/") else where in (site, site.partition(":")[0])


def passed_sites(folder: Path) -> set[str]:
    """List the functions that pass points in runs of every variant, and in what follows one that was killed."""
    passed = set()
    runs = [(TWELVE_TASKS, RUNTIME), *((THREE_TASKS, runtime) for runtime in VARIANTS.values())]
    for number, (steps, runtime) in enumerate(runs):
        scene = make_scene(folder / f"scene-{number}", steps, runtime=runtime)
        assert scene.start(*scene.words) == 0, scene.said()
        passed |= scene.sites()
    scene = make_scene(folder / "killed", FOUR_TASKS)
    scene.start(*scene.words, kill=Kill("after SessionStarted", 2))
    for words in (("resume", "--events"), ("merge", "--undo", "--yes"), ("clean",)):
        assert scene.start(*words) == 0, scene.said()
        passed |= scene.sites()
    return passed


def list_effects() -> set[str]:
    """List the functions of the source that change files, by file and name."""
    return {f"{place(path)}:{name}" for path in EVERY_FILE for name in changing_functions(tree(path), "")}


def changing_functions(node: ast.AST, function: str) -> Iterator[str]:
    """Give the names of the functions below *node* that change files; *function* is the one around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and is_effect(child):
            yield function
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from changing_functions(child, inner)


def is_effect(call: ast.Call) -> bool:
    """Say whether a call changes files, by the name of what is called and how it opens."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in AMBIGUOUS:
        return isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") in ("os", "shutil")
    if name == "open":
        given = [word for argument in call.args for word in ast.walk(argument)]
        modes = [word.value for word in given if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        flags = {word.attr for word in given if isinstance(word, ast.Attribute)}
        return any(mode[:1] in ("w", "a", "x") for mode in modes) or bool(flags & {"O_CREAT", "O_WRONLY", "O_RDWR"})
    return name in EFFECTS


def test_every_kind_of_event_is_recorded_by_the_scenario_or_listed_with_a_reason(undisturbed: Undisturb) -> None:
    passed = {point.removeprefix("before ") for point in undisturbed(TWELVE_TASKS, RUNTIME).points}
    kinds = {kind.__name__ for kind in get_args(Event)}

    assert kinds - passed - set(NOT_PASSED) == set(), "kinds of events without a crash point"
    assert set(NOT_PASSED) - kinds == set(), "kinds of events that are gone"


def test_every_git_command_that_writes_is_run_by_the_scenario_or_listed_with_a_reason(undisturbed: Undisturb) -> None:
    passed = {
        point.split(" ")[2] for point in undisturbed(TWELVE_TASKS, RUNTIME).points if point.startswith("before git ")
    }

    assert git_commands() - GIT_READS - passed - set(GIT_NOT_PASSED) == set(), "commands of git without a crash point"


def git_commands() -> set[str]:
    """Name the commands of git that the source gives to its door."""
    calls = (node for path in EVERY_FILE if place(path) != "git/run.py" for node in ast.walk(tree(path)))
    found = set()
    for call in calls:
        if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) in (
            "git",
            "git_text",
        ):
            words = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            found |= set([word for word in words if not word.startswith("-")][:1])
    return found
