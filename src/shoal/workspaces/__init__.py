"""Kinds of workspace: overlay, worktree, directory."""
