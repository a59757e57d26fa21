"""The environment of our own git inside a box: a gitdir of ours, nobody's configuration, no network."""

from pathlib import Path

from shoal.engine.lease import SYSTEM_PATH


def git_environment(gitdir: Path, tree: Path) -> dict[str, str]:
    """Name the gitdir, its index and the files it looks at."""
    return {
        "PATH": ":".join(SYSTEM_PATH),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_DIR": str(gitdir),
        "GIT_WORK_TREE": str(tree),
        "GIT_INDEX_FILE": str(gitdir / "index"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "",
    }
