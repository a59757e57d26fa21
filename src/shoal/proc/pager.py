"""Show text in the user's pager."""

import contextlib
import signal
from collections.abc import Iterable, Mapping
from subprocess import PIPE, Popen

NOT_TO_BE_HAD = (126, 127)


def show_pages(lines: Iterable[bytes], command: str, env: Mapping[str, str]) -> bool:
    """Show *lines* by *command*, which a shell reads as git's would; `False` when there is no such program."""
    # In our own session, unlike every other process of ours: without the terminal there are no keys to turn pages with.
    pager = Popen(["/bin/sh", "-c", command], stdin=PIPE, env=dict(env))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's while it runs
    try:
        with contextlib.suppress(BrokenPipeError):  # left before the end
            _feed_pager(pager, lines)
    finally:
        code = pager.wait()
        signal.signal(signal.SIGINT, before)
    return code not in NOT_TO_BE_HAD


def _feed_pager(pager: Popen[bytes], lines: Iterable[bytes]) -> None:
    if pager.stdin is None:
        return
    with pager.stdin as feed:
        for line in lines:
            feed.write(line)
