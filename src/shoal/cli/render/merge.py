"""What came of a merge, in words."""

import shlex
from collections.abc import Iterator, Sequence

from shoal.cli.output import Paint, escape, flat
from shoal.cli.render.columns import columns, count, heading, join_cells, some
from shoal.cli.render.overlaps import matrix
from shoal.model.merge import Conflict, Delivery, DeliveryStatus, MergeReport, MergeResult, MergeStatus, Preview

INDENT = "  "
NAMED = 5
TONES = {
    MergeStatus.MERGED: "good",
    MergeStatus.NO_CHANGES: "dim",
    MergeStatus.CONFLICTS: "bad",
    MergeStatus.HELD: "warn",
}


def merge_lines(done: MergeReport, program: str, paint: Paint, *, is_asking: bool = False) -> Iterator[str]:
    """Say what became of each session, of the branch, and what to type next, where no question follows."""
    yield from _table(done.results, paint)
    merged = sum(one.status is MergeStatus.MERGED for one in done.results)
    where = f"{escape(done.branch)} at {done.commit[:10]}" if done.commit else "no branch was made"
    yield f"{paint(escape(done.run), 'bold')}: {merged} of {count(len(done.results), 'session')} merged; {where}"
    if done.base_fault is not None:
        yield f"verification fails on the base already: {escape(done.base_fault.partition(chr(10))[0])}"
    if done.branch_fault is not None:
        reason = escape(done.branch_fault.partition(chr(10))[0])
        yield f"{paint('verification fails', 'bad')} on {escape(done.branch)} as it is: {reason}; nothing is delivered"
    if done.left_out:
        yield f"left out, for they did not end well or were taken out; name them to merge them: {some(done.left_out)}"
    if done.delivery is not None:
        yield delivery_line(done.delivery, paint, is_made=done.commit is not None)
    yield from (f"{INDENT}{line}" for line in _next(done, program, is_asking=is_asking))


def undo_lines(done: MergeReport, paint: Paint) -> Iterator[str]:
    """Say what was taken out, and what is left."""
    stuck = [one for one in done.results if one.status.needs_a_person]
    yield from _table(stuck, paint)
    yield f"taken out of {escape(done.branch)}: {some(done.left_out) or 'nothing'}"
    if done.commit is None:
        yield f"nothing is left on {escape(done.branch)}: it is removed, and the agents' own branches stay"
    if done.delivery is not None:
        yield delivery_line(done.delivery, paint)
        if done.delivery.command:
            yield f"{INDENT}{escape(done.delivery.command)}"


def preview_lines(seen: Preview, paint: Paint) -> Iterator[str]:
    """Draw who conflicts with whom, and say in which files."""
    if not seen.clashes:
        touching = f"; {count(len(seen.overlaps), 'pair')} changed the same files" if seen.overlaps else ""
        yield f"no conflicts among {count(len(seen.sessions), 'session')}{touching}"
        return
    yield from _matrix(seen, paint)
    for clash in seen.clashes:
        yield f"{escape(clash.one)} {paint('conflicts with', 'bad')} {escape(clash.other)}"
        yield from (f"{INDENT}{_conflict(one)}" for one in clash.conflicts[:NAMED])
    if not seen.is_whole:
        yield "there are more pairs than were tried; merging tells the rest"


def confirm_line(ready: MergeReport, into: str) -> str:
    """Ask a person whether the branch may go into theirs."""
    return f"deliver {escape(ready.branch)} into {escape(into)}? [y/N]"


def declined_line(ready: MergeReport, into: str, program: str) -> str:
    """Say what a person's no leaves, and how to be asked again."""
    again = f"{program} merge {escape(ready.run)} --into {escape(shlex.quote(into))}"
    return f"not delivered: {escape(into)} stays as it is; `{again}` asks again"


def _matrix(seen: Preview, paint: Paint) -> Iterator[str]:
    """Give a row for each session that overlaps with another; `x` is a conflict, `~` the same files without one."""
    marks = {pair: "~" for one, two in seen.overlaps for pair in ((one, two), (two, one))}
    marks |= {pair: "x" for clash in seen.clashes for pair in ((clash.one, clash.other), (clash.other, clash.one))}
    names = [name for name in seen.sessions if any(name == one for one, _ in marks)]
    lines = list(matrix(names, marks, paint))
    yield from (*lines, "") if lines else ()


def _table(results: Sequence[MergeResult], paint: Paint) -> Iterator[str]:
    rows = [[escape(one.session), one.status.value, (one.commit or "")[:10], _reason(one)] for one in results]
    if not rows:
        return
    head, *padded = columns([["session", "status", "commit", ""], *rows])
    yield INDENT + heading(head, paint)
    for one, row in zip(results, padded, strict=True):
        row[1] = paint(row[1], TONES[one.status])
        yield INDENT + join_cells(row)
        yield from (f"{INDENT}{INDENT}{_conflict(conflict)}" for conflict in one.conflicts[:NAMED])
        if len(one.conflicts) > NAMED:
            yield f"{INDENT}{INDENT}… and {len(one.conflicts) - NAMED} more"


def _reason(one: MergeResult) -> str:
    """Give the first line of what is said of it; the rest is the log of a verification."""
    return flat(one.message.partition("\n")[0])


def _conflict(one: Conflict) -> str:
    partners = f" (with {some(one.partners, NAMED)})" if one.partners else ""
    return f"{one.kind.value}: {some(one.paths, NAMED)}{partners}"


def delivery_line(one: Delivery, paint: Paint, *, is_made: bool = True) -> str:
    """Say what became of a branch of the user's; there is nothing to deliver where no integration branch *is_made*."""
    match one.status:
        case DeliveryStatus.DELIVERED:
            return f"{paint('delivered', 'good')} into {escape(one.into)}: {one.old[:10]} → {one.new[:10]}"
        case DeliveryStatus.UNCHANGED:
            return f"{escape(one.into)} holds it already" if is_made else f"nothing to deliver into {escape(one.into)}"
        case DeliveryStatus.LEFT:
            return f"{paint('not delivered', 'warn')} into {escape(one.into)}: {flat(one.message)}; this finishes it:"
        case DeliveryStatus.WAITING:
            return f"{paint('not delivered yet', 'warn')} into {escape(one.into)}: {escape(one.message)} by"


def _next(done: MergeReport, program: str, *, is_asking: bool) -> Iterator[str]:
    """Give the commands that a person would type now."""
    if done.delivery is not None and done.delivery.command:
        yield escape(done.delivery.command)
    elif done.delivery is None and done.commit is not None:
        yield f"git diff {done.start[:10]} {escape(done.branch)}"
        if done.branch_fault is None and not is_asking:
            yield f"{program} merge {escape(done.run)} --into BRANCH"
    conflicting = [one for one in done.results if one.status is MergeStatus.CONFLICTS]
    for one in conflicting[:1]:
        yield f"{program} diff {escape(one.session)}"
