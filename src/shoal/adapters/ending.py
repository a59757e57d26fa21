"""What is said of a client that ended without telling its own end."""


def unfinished(*told: str) -> str:
    """Say that it was not done, with the first of what it *told* that is not empty."""
    said = next((one for one in told if one.strip()), "")
    return f"it ended before it was done: {said}" if said else "it ended before it was done, and did not say why"


def last_line(errors: str) -> str:
    """Give the last line of stderr that says something."""
    return next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
