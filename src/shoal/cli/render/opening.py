"""Where a branch was opened, in words."""

from shoal.cli.plain import plain


def opened_line(branch: str, *, is_new: bool, is_elsewhere: bool) -> str:
    """Say what stands in the folder whose path follows."""
    if is_new:
        return (
            f"shoal: {plain(branch)} is checked out in a worktree of yours; `git worktree remove` takes it away again"
        )
    return f"shoal: {plain(branch)} is open already{', elsewhere' if is_elsewhere else ''}"
