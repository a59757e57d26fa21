"""Poison: everything that makes git run programs of others, written by a script that works inside and outside a sandbox.

Each program records which way it was started, so that a test outside can show that the way is real. Inside, where it
may not run at all, it also kills the git that called it: a seal that ran any of it would never finish.
"""

import subprocess
from pathlib import Path

from tests.conftest import git, make_repo

HOOKS = (
    *("applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-update", "pre-applypatch", "pre-commit"),
    *("pre-merge-commit", "pre-push", "pre-rebase", "pre-receive", "prepare-commit-msg", "push-to-checkout", "update"),
    *("post-checkout", "post-commit", "post-index-change", "post-merge", "post-rewrite", "reference-transaction"),
)

CONFIG = """
[core]
	fsmonitor = @ fsmonitor
	pager = @ pager
	editor = @ editor
	sshCommand = @ ssh
	askPass = @ askpass
	gitProxy = @ proxy
	alternateRefsCommand = @ alternate-refs
	hooksPath = HOOKS
	attributesFile = ATTRIBUTES
[include]
	path = INCLUDED
[diff]
	external = @ diff-external
[diff "x"]
	command = @ diff-command
	textconv = @ textconv
[merge "x"]
	driver = @ merge-driver
[filter "x"]
	clean = @ clean
	smudge = @ smudge
	required = true
[gpg]
	program = @
[commit]
	gpgSign = true
[tag]
	gpgSign = true
[credential]
	helper = "!@ credential"
[uploadpack]
	packObjectsHook = @ pack-objects
[gc]
	recentObjectsHook = @ recent-objects
[submodule]
	recurse = true
[submodule "sub"]
	update = "!@ submodule"
	active = true
	url = ext::@ submodule-url
[extensions]
	worktreeConfig = true
	partialClone = evil
[remote "evil"]
	url = ext::@ lazy-fetch
	promisor = true
	vcs = evil
[protocol]
	allow = always
[protocol "ext"]
	allow = always
"""


def poisoned(canary: Path, *, kills: bool = True) -> str:
    """Return a script that poisons the gitdir of its folder; git is unusable there afterwards."""
    end = "kill -9 $PPID" if kills else "true"
    return rf"""
    G=$(git rev-parse --absolute-git-dir); mkdir -p "$G/evil-hooks" "$G/hooks" "$G/info"
    printf '#!/bin/sh\necho "$1" >> %s\ncat > /dev/null 2>&1 < /dev/null\n%s\n' '{canary}' '{end}' > "$G/run"
    chmod 755 "$G/run"
    for hook in {" ".join(HOOKS)}; do
      printf '#!/bin/sh\n"%s" hook-%s\n' "$G/run" $hook | tee "$G/hooks/$hook" > "$G/evil-hooks/$hook"
    done
    chmod 755 "$G"/hooks/* "$G"/evil-hooks/*
    printf '* filter=x diff=x merge=x\n' | tee "$G/attributes" "$G/info/attributes" > .gitattributes
    printf '[alias]\n\tst = !%s alias\n' "$G/run" > "$G/included"
    cat > "$G/poison" <<'END'
{CONFIG}
END
    sed -i "s|@|$G/run|; s|HOOKS|$G/evil-hooks|; s|ATTRIBUTES|$G/attributes|; s|INCLUDED|$G/included|" "$G/poison"
    printf '[core]\n\tfsmonitor = %s worktree-config\n' "$G/run" > "$G/config.worktree"
    printf '[core]\n\trepositoryformatversion = 1\n' >> "$G/config"; cat "$G/poison" >> "$G/config"
    git() {{ echo "git is poisoned here" >&2; false; }}
    """


DOORS = {"worktree-config", "diff-command", "textconv", "clean", "smudge", "merge-driver", "alias", "lazy-fetch"}
DOORS |= {"hook-pre-commit", "hook-post-index-change", "hook-reference-transaction", "hook-post-checkout"}


def tried_outside(folder: Path) -> set[str]:
    """Poison a scratch repository and use git in it like a careless tool; return which programs ran."""
    repo, canary = make_repo(folder / "scratch"), folder / "fired"
    base = git(repo, "rev-parse", "HEAD")
    git(repo, "config", "user.name", "Ada")
    git(repo, "config", "user.email", "ada@example.org")
    for branch, text in (("other", "theirs\n"), ("main", "ours\n")):
        git(repo, "checkout", "-q", "-B", branch, base)
        (repo / "README.md").write_text(text)
        git(repo, "commit", "-qam", text)
    blob = git(repo, "rev-parse", "HEAD:d0/f0.txt")
    subprocess.run(["sh", "-c", poisoned(canary, kills=False)], cwd=repo, check=True)
    (repo / "README.md").write_text("changed\n")
    unsigned = ("-c", "commit.gpgSign=false")
    for words in (("status",), ("diff",), ("diff", "--no-ext-diff"), ("add", "-A"), (*unsigned, "commit", "-qm", "x")):
        careless(repo, *words)
    careless(repo, "st")
    careless(repo, *unsigned, "merge", "other")
    careless(repo, "checkout", "-f", "other")
    (repo / ".git/objects" / blob[:2] / blob[2:]).unlink()
    careless(repo, "cat-file", "-p", blob)
    return set(canary.read_text().split())


def careless(repo: Path, *words: str) -> None:
    """Run git with everything that is configured there."""
    subprocess.run(["git", *words], cwd=repo, capture_output=True, check=False, timeout=60)
