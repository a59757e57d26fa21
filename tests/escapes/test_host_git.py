"""What an agent does to git so that the host's git does something for it: catalogue B1."""

import asyncio
import hashlib
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.status import Status
from tests.acting import assert_nothing_left, fingerprint, paths_in, shown
from tests.cli.conftest import shoal_in
from tests.conftest import git, make_repo
from tests.escapes.poison import DOORS, HOOKS, careless, poisoned, tried_outside
from tests.escapes.scene import Scene

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture(params=["overlay", "worktree"])
def strategy(request: pytest.FixtureRequest, wall: str) -> str:
    """The workspace; in the fallback sandbox an overlay needs root, so the host's own choice is used."""
    return "auto" if (request.param, wall) == ("overlay", "landlock") else str(request.param)


def test_the_poison_is_real(tmp_path: Path) -> None:
    """Without this, the tests below could not fail."""
    assert tried_outside(tmp_path) >= DOORS


async def test_a_poisoned_gitdir_runs_nothing(scene: Scene, strategy: str, tmp_path: Path) -> None:
    """B1.2, B1.3, B1.4, B1.5, B1.7, B1.8, B1.9: in run, seal, import, diff, open and clean."""
    other = make_repo(tmp_path / "other")
    own = f"""
    {poisoned(scene.canary)}
    echo "$(cat "$G/HEAD") x" > "$G/info/grafts"; echo '*.kept' > "$G/info/exclude"
    echo {other}/.git/objects >> "$G/objects/info/alternates"
    echo w > w; echo k > k.kept; echo changed > README.md; rm d0/f1.txt
    """

    attack = await scene.attacked(own, strategy=strategy)

    assert attack.result.status is Status.SUCCEEDED, attack.result
    assert {"w", "k.kept", ".gitattributes"} <= paths_in(scene.repo, attack.result)
    assert shown(scene.repo, attack.result, "README.md") == "changed", "no filter had it in its hands"
    assert "d0/f1.txt" not in paths_in(scene.repo, attack.result)
    assert attack.result.executable == (".gitattributes",)
    await scene.looked_after(attack)


FOREIGN = ("config", "config.worktree", "info/attributes", "info/exclude", "info/grafts", "objects/info/alternates")
LOCKS = ("index.lock", "HEAD.lock", "config.lock", "packed-refs.lock", "shallow.lock", "refs/heads/main.lock")
REFS = ("HEAD", "ORIG_HEAD", "refs/heads/main", "refs/heads/precious", "refs/stash", "packed-refs", "commondir")


async def test_the_users_gitdir_takes_nothing(scene: Scene, strategy: str) -> None:
    """B1.2 to B1.5, B1.9, B1.14, B1.16, B1.17, B1.18: by path, and by git with the user's repository named."""
    names = " ".join((*FOREIGN, *LOCKS, *REFS, *(f"hooks/{hook}" for hook in HOOKS)))
    before = files_of(scene.repo / ".git")
    script = f"""
    R={scene.repo}/.git
    for name in {names}; do
      (mkdir -p "$R/$(dirname $name)"; printf '[core]\\n\\tfsmonitor = touch {scene.canary}\\n' >> "$R/$name") 2>/dev/null &&
        echo "wrote $name"
    done
    find "$R/objects" -type f -exec sh -c ': > "$1" && echo "wrote $1"' sh {{}} \\; 2>/dev/null
    find "$R" -mindepth 1 -delete 2>/dev/null; rm -rf "$R" 2>/dev/null
    evil=$(git commit-tree -p HEAD -m evil 'HEAD^{{tree}}')
    for there in "--git-dir=$R" "-C {scene.repo}" "--git-dir=.git"; do
      for words in "update-ref refs/heads/main $evil" "branch -D precious" "tag -f v1 $evil" "push . +$evil:main" \\
          "push $R +$evil:refs/heads/main" "stash clear" "reflog expire --expire=now --all" "gc -q --prune=now" \\
          "worktree prune" "repack -adq" "prune --expire=now" "config core.fsmonitor true" "symbolic-ref HEAD refs/heads/evil"; do
        git $there $words > /dev/null 2>&1
      done
    done
    echo w > w
    """

    attack = await scene.attacked(script, strategy=strategy)

    assert attack.result.output == ""
    assert shown(scene.repo, attack.result, "w") == "w"
    assert files_of(scene.repo / ".git") == before
    assert git(scene.repo, "fsck", "--full", "--strict", "--no-dangling") == ""
    assert git(scene.repo, "stash", "list").count("\n") == 0
    assert git(scene.repo, "show", "stash@{0}:README.md") == "stashed"


def files_of(gitdir: Path) -> dict[str, str]:
    """Each file of a gitdir except objects, our own refs, and the line that hides our folder from the user's status."""
    ours = re.compile(r"objects/../|objects/pack/|(logs/)?refs/(shoal|heads/agent)\b|info/exclude$")
    files = {str(path.relative_to(gitdir)): path for path in gitdir.rglob("*") if path.is_file()}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if not ours.match(name)}


async def test_a_replaced_pointer_is_not_followed(scene: Scene, strategy: str, tmp_path: Path) -> None:
    """B1.1: `.git` replaced by a pointer, a link or a folder of the agent's own making."""
    script = """
    git init -q --separate-git-dir evil.git evil; rm -rf evil; cp -r evil.git deeper.git
    printf '[core]\\n\\tworktree = %s\\n\\tbare = false\\n\\tfsmonitor = touch %s\\n' "$PWD" {canary} >> evil.git/config
    echo w > w
    rm -rf .git 2>/dev/null; mv .git moved 2>/dev/null; ln -sfn evil.git .git 2>/dev/null
    [ -d .git/refs ] || echo 'gitdir: evil.git' > .git; true
    """
    outside = make_repo(tmp_path / "outside")
    subprocess.run(["sh", "-c", script.format(canary=tmp_path / "fired")], cwd=outside, check=True, capture_output=True)
    careless(outside, "status")
    assert (tmp_path / "fired").exists(), "the attack works where nothing is between"

    attack = await scene.attacked(script.format(canary=scene.canary), strategy=strategy)

    assert attack.result.status is Status.SUCCEEDED, attack.result
    assert shown(scene.repo, attack.result, "w") == "w"
    assert ".git" not in paths_in(scene.repo, attack.result)


NESTED = """
git init -q sub; cd sub; echo s > s; git add s; git -c user.name=a -c user.email=a@b commit -qm s; sha=$(git rev-parse HEAD); cd ..
git update-index --add --cacheinfo 160000,$sha,sub
git -C sub config core.fsmonitor 'touch {canary}; true'
"""


async def test_nested_repositories_and_submodules_start_nothing(scene: Scene, tmp_path: Path) -> None:
    """B1.6, B1.10, B1.15: with a user who has git recurse into submodules, and refs named like options."""
    outside = make_repo(tmp_path / "outside")
    subprocess.run(["sh", "-c", NESTED.format(canary=tmp_path / "fired")], cwd=outside, check=True)
    careless(outside, "status")
    assert (tmp_path / "fired").exists(), "the attack works where nothing is between"
    script = f"""
    {NESTED.format(canary=scene.canary)}
    printf '[submodule "sub"]\\n\\tpath = sub\\n\\turl = {outside}\\n' > .gitmodules; git add .gitmodules; git commit -qm modules
    linked=$(git commit-tree -p HEAD -m linked 'HEAD^{{tree}}'); sound=$(git commit-tree -p HEAD~1 -m sound 'HEAD~1^{{tree}}')
    git update-ref 'refs/heads/--upload-pack=touch {scene.canary}' $linked
    git update-ref 'refs/heads/--output={scene.canary}' $sound; git update-ref refs/tags/-d $sound
    heads="$(git rev-parse --git-dir)/refs/heads"; mkdir "$heads/$(printf 'a\\nb')"
    echo $sound > "$heads/$(printf 'a\\nb/\\033[2J')"
    """

    attack = await recursing(scene).attacked(script)

    assert attack.result.status is Status.SUCCEEDED, attack.result
    assert shown(scene.repo, attack.result, "sub/s") == "s", "plain files"
    assert ".gitmodules" in attack.result.executable
    assert "160000" not in git(scene.repo, "ls-tree", "-r", attack.result.branch or "")
    (kept,) = attack.result.kept_refs
    assert kept == f"refs/shoal/kept/{(attack.result.branch or '').removeprefix('agent/')}/0", "the name is ours"
    assert git(scene.repo, "log", "-1", "--format=%s", kept) == "sound"
    await recursing(scene).looked_after(attack)


def recursing(scene: Scene) -> Scene:
    """The same, with a user whose git goes into submodules and takes any protocol."""
    for key, value in (
        ("submodule.recurse", "true"),
        ("protocol.allow", "always"),
        ("fetch.recurseSubmodules", "true"),
    ):
        git(scene.repo, "config", key, value)
    return replace(scene, before=fingerprint(scene.repo))


HOSTILE_MODULES = {
    "gitmodulesUpdate": "path = sub\\n\\turl = ./sub\\n\\tupdate = !touch {canary}",
    "gitmodulesUrl": "path = sub\\n\\turl = -u./sub",
    "gitmodulesPath": "path = -u./sub\\n\\turl = ./sub",
}


@pytest.mark.parametrize("check", HOSTILE_MODULES)
async def test_hostile_submodules_are_refused_by_name(scene: Scene, check: str) -> None:
    """B1.10: the work is not lost, its raw files stay."""
    entry = HOSTILE_MODULES[check].format(canary=scene.canary)

    attack = await recursing(scene).attacked(f"printf '[submodule \"sub\"]\\n\\t{entry}\\n' > .gitmodules; echo w > w")

    assert attack.result.status is Status.FAILED
    assert check in (attack.result.error or ""), attack.result
    assert attack.result.raw is not None
    assert attack.result.branch is None


@pytest.mark.deep
async def test_a_link_that_becomes_a_folder_reaches_nothing_outside(scene: Scene) -> None:
    """B1.11: in two commits, and in one tree that holds both, which only a forger of objects can make."""
    script = f"""
    ln -s {scene.home}/.ssh docs; ln -s ../../../../../../../../../..{scene.home} up; git add docs up; git commit -qm link
    rm docs; mkdir docs; echo evil > docs/authorized_keys; git add docs; git commit -qm folder
    blob=$(echo evil | git hash-object -w --stdin); link=$(printf %s {scene.home}/.ssh | git hash-object -w --stdin)
    inner=$(printf '100644 blob %s\\tauthorized_keys\\n' $blob | git mktree)
    raw() {{ python3 -c 'import sys; sys.stdout.buffer.write(bytes.fromhex(sys.argv[1]))' $1; }}
    both=$({{ printf '120000 both\\0'; raw $link; printf '40000 both\\0'; raw $inner; }} |
      git hash-object -t tree -w --stdin --literally)
    tree=$({{ git ls-tree HEAD; printf '040000 tree %s\\tboth\\n' $both; }} | git mktree)
    git update-ref refs/heads/forged $(git commit-tree $tree -p HEAD -m forged)
    echo w > w
    """

    attack = await scene.attacked(script)

    assert attack.result.status is Status.SUCCEEDED, attack.result
    assert shown(scene.repo, attack.result, "docs/authorized_keys") == "evil"
    await scene.looked_after(attack)
    assert os.listdir(scene.home / ".ssh") == ["id_rsa"]


BOMBS = {
    # A file of the history that the tip does not have any more, and one that no ref of git's own making leads to.
    "blob": "git update-index --add --cacheinfo 100644,$name,zero; git commit -qm bomb; git update-index --force-remove zero; git commit -qm gone",
    "commit": 'echo $name > "$(git rev-parse --git-dir)/HEAD"',
    "tree": 'echo $(git commit-tree $name -p HEAD -m bomb) > "$(git rev-parse --git-dir)/refs/heads/bomb"',
}


@pytest.mark.parametrize("kind", BOMBS)
async def test_an_object_of_a_gigabyte_packed_to_nothing_is_refused_unread(scene: Scene, kind: str) -> None:
    """B1.12: read once by the host, it would cost as much memory, or seconds for each gigabyte that it says it has."""
    (scene.repo / "bomb.py").write_bytes((PROGRAMS / "bomb.txt").read_bytes())
    git(scene.repo, "add", "bomb.py")
    git(scene.repo, "commit", "-qm", "bomb")
    scene = replace(scene, before=fingerprint(scene.repo))

    attack = await scene.attacked(
        f"name=$(python3 bomb.py {kind} 1024); git cat-file -s $name; {BOMBS[kind]}; echo w > w"
    )

    assert int(attack.result.output.split()[0]) >= 2**30, "it is one"
    assert attack.result.status is Status.SUCCEEDED, attack.result
    assert shown(scene.repo, attack.result, "w") == "w"
    assert attack.result.kept_refs == ()
    assert git(scene.repo, "rev-list", "--count", f"main..{attack.result.branch}") == "1", "squashed"
    assert largest(scene.repo) < 2**20


def largest(repo: Path) -> int:
    """The size of the repository's largest object."""
    asked = "--batch-check=%(objectsize)"
    return max(map(int, git(repo, "cat-file", "--batch-all-objects", "--unordered", asked).split()))


async def test_a_sparse_file_is_not_hashed_wherever_it_lies(scene: Scene, strategy: str) -> None:
    """B1.13: also below a nested repository, with or without a commit."""
    script = """
    for d in . with without; do mkdir -p $d; echo s > $d/s; done
    git init -q without; git init -q with; cd with; git add s; git commit -qm s; cd ..
    for d in . with without; do truncate -s 30G $d/huge; done
    """

    attack = await scene.attacked(script, strategy=strategy)

    assert attack.result.status is Status.FAILED, attack.result
    assert {"s", "with/s", "without/s"} <= paths_in(scene.repo, attack.result)
    assert sorted(attack.result.unkept) == ["huge", "with/huge", "without/huge"]
    assert "too large for a branch" in str(attack.result.error)


async def test_a_history_with_a_hole_is_squashed(scene: Scene) -> None:
    """B1.7: a blob that is not there is not asked for anywhere; the files are kept all the same."""
    script = """
    echo one > one; git add one; git commit -qm one; blob=$(git rev-parse HEAD:one)
    git rm -q one; git commit -qm two
    rm -f "$(git rev-parse --git-dir)/objects/$(echo $blob | cut -c1-2)/$(echo $blob | cut -c3-)"; echo w > w
    """

    attack = await scene.attacked(script)

    assert shown(scene.repo, attack.result, "w") == "w"
    assert git(scene.repo, "rev-list", "--count", f"main..{attack.result.branch}") == "1"


async def test_locks_left_behind_stop_nobody(scene: Scene, strategy: str) -> None:
    """B1.18: in the agent's own gitdir; what it does to the user's is above."""
    script = """
    echo mine > mine; git add mine; git commit -qm mine; echo w > w
    cd "$(git rev-parse --git-dir)"; mkdir -p refs/heads
    for lock in index HEAD config packed-refs shallow gc.pid refs/heads/x objects/maintenance; do
      mkdir -p $(dirname $lock); : > $lock.lock
    done
    """

    attack = await scene.attacked(script, strategy=strategy)
    again = await scene.attacked("echo again > again", strategy=strategy)

    assert (shown(scene.repo, attack.result, "w"), shown(scene.repo, attack.result, "mine")) == ("w", "mine")
    assert shown(scene.repo, again.result, "again") == "again"
    assert_nothing_left(scene.repo)


async def test_the_folder_of_shoal_is_on_no_branch(scene: Scene, strategy: str) -> None:
    """git overwrites ignored files: a branch with a ledger in it would replace Shoal's own at the next checkout."""
    script = """
    mkdir -p .shoal/base; echo evil > .shoal/ledger.db; echo evil > .shoal/base/x; printf '!.shoal\\n!.shoal/**\\n' > .gitignore
    git add -f .shoal .gitignore; git commit -qm state; git init -q .shoal/base; echo w > w
    """

    attack = await scene.attacked(script, strategy=strategy)
    ledger = hashlib.sha256((scene.repo / ".shoal/ledger.db").read_bytes()).digest()
    git(scene.repo, "checkout", "-q", "--detach", attack.result.branch or "")
    git(scene.repo, "checkout", "-q", "main")

    assert {"w", ".gitignore"} <= paths_in(scene.repo, attack.result)
    assert not any(path.startswith(".shoal") for path in paths_in(scene.repo, attack.result))
    assert attack.result.unkept == (".shoal",)
    assert attack.result.raw is not None
    assert hashlib.sha256((scene.repo / ".shoal/ledger.db").read_bytes()).digest() == ledger


async def test_a_run_from_a_hook_works_on_the_repository_that_it_is_in(scene: Scene, tmp_path: Path) -> None:
    """B1.19: every variable by which git tells a hook where it is, and configuration that would start a program."""
    other, place = make_repo(tmp_path / "other"), tmp_path / "opened"
    before = fingerprint(other), files_of(other / ".git")
    hook = dict.fromkeys(git(other, "rev-parse", "--local-env-vars").split(), "/nonexistent")
    hook |= variables_of_a_hook(other, program=f"touch {scene.canary}")
    shoal = shoal_in(scene.repo)
    words = ("--json", "--sandbox", scene.wall, "--task", "x", "--command", "sh -c 'env; git status; echo w > w'")

    said = await asyncio.to_thread(shoal, "run", *words, **hook)
    others = [await asyncio.to_thread(shoal, *one, **hook) for one in (("diff",), ("open", "--path", str(place)))]
    there = (place / "w").read_text()
    cleaned = await asyncio.to_thread(shoal, "clean", "--force", **hook)

    assert [one.code for one in (said, *others, cleaned)] == [0, 0, 0, 0], (said, *others, cleaned)
    (result,) = json.loads(said.out)["steps"][0]["worker_results"]
    assert (git(scene.repo, "show", f"{result['branch']}:w"), there) == ("w", "w\n")
    assert set(re.findall(r"^(GIT_\w+)=", result["output"], re.MULTILINE)).isdisjoint(hook)
    assert (fingerprint(other), files_of(other / ".git")) == before
    assert git(other, "for-each-ref", "refs/heads/agent", "refs/shoal") == ""
    assert not (other / ".shoal").exists()
    assert not scene.canary.exists()


def variables_of_a_hook(repo: Path, *, program: str) -> dict[str, str]:
    """What a hook of *repo* is given, and all that a person may have set to start *program*."""
    gitdir = f"{repo}/.git"
    where = {"GIT_DIR": gitdir, "GIT_COMMON_DIR": gitdir, "GIT_WORK_TREE": str(repo), "GIT_PREFIX": "d0/"}
    where |= {"GIT_INDEX_FILE": f"{gitdir}/index", "GIT_OBJECT_DIRECTORY": f"{gitdir}/objects"}
    keys = {"core.fsmonitor": program, "core.hooksPath": str(repo), "diff.external": program}
    for number, (key, value) in enumerate(keys.items()):
        where |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    where |= {"GIT_CONFIG_COUNT": str(len(keys)), "GIT_CONFIG_PARAMETERS": f"'core.fsmonitor'='{program}'"}
    return where | {"GIT_EXTERNAL_DIFF": program, "GIT_SSH_COMMAND": program, "GIT_EXEC_PATH": str(repo)}
