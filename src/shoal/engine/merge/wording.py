"""The messages of the commits that a merge makes."""

from collections.abc import Sequence

from shoal.engine.merge.candidates import Candidate

SUBJECT = 60


def message(run: str, one: Candidate) -> str:
    """Say whose work a merge brings."""
    return f"Merge {one.session}\n\n{_asked(one)}{_trailers(run, [one.session])}"


def squash_message(run: str, one: Candidate) -> str:
    """Say in one commit what a session did."""
    asked = _line(one.subject)
    subject = f"{one.session}: {asked[:SUBJECT]}" if asked else one.session
    return f"{subject}\n\n{_asked(one) if len(asked) > SUBJECT else ''}{_trailers(run, [one.session])}"


def all_message(run: str, sessions: Sequence[str]) -> str:
    """Say whose work one merge brings together."""
    return f"Merge {len(sessions)} sessions of {run}\n\n{_trailers(run, sessions)}"


def brought_message(run: str, commit: str) -> str:
    """Say that a branch was brought up to date."""
    return f"Merge {commit[:10]} into shoal/{run}\n\nShoal-Run: {run}\n"


def revert_message(run: str, sessions: Sequence[str]) -> str:
    """Say whose work is taken out again."""
    some = sessions[0] if len(sessions) == 1 else f"{len(sessions)} sessions of {run}"
    lines = "".join(f"Shoal-Undone: {session}\n" for session in sessions)
    return f"Revert {some}\n\nShoal-Run: {run}\n{lines}"


def _asked(one: Candidate) -> str:
    asked = _line(one.subject)
    return f"{asked}\n\n" if asked else ""


def _trailers(run: str, sessions: Sequence[str]) -> str:
    return f"Shoal-Run: {run}\n" + "".join(f"Shoal-Session: {session}\n" for session in sessions)


def _line(text: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
