"""The result of a merge as text."""

import shlex
from collections.abc import Collection, Iterator, Sequence

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


def merge_lines(
    done: MergeReport, program: str, paint: Paint, *, is_asking: bool = False, has_next: bool = True
) -> Iterator[str]:
    """Describe the result for each session and the branch, and what to type next unless a question follows."""
    yield from _table(done.results, paint)
    merged = sum(result.status is MergeStatus.MERGED for result in done.results)
    where = f"{escape(done.branch)} at {done.commit[:10]}" if done.commit else "no branch was made"
    merged_text = f"{merged} of {count(len(done.results), 'session')} merged" if done.results else "nothing is merged"
    yield f"{paint(escape(done.run), 'bold')}: {merged_text}; {where}"
    if done.base_fault is not None:
        yield f"verification already fails on the base: {escape(done.base_fault.partition(chr(10))[0])}"
    if done.branch_fault is not None:
        reason = escape(done.branch_fault.partition(chr(10))[0])
        yield f"{paint('verification fails', 'bad')} on {escape(done.branch)}: {reason}; nothing is delivered"
    if done.left_out:
        yield f"left out (failed or undone; name them to merge them): {some(done.left_out)}"
    if done.delivery is not None:
        yield delivery_line(done.delivery, paint, is_made=done.commit is not None)
    if has_next:
        yield from (f"{INDENT}{line}" for line in _next(done, program, is_asking=is_asking))


def next_after_merge(done: MergeReport, program: str) -> str | None:
    """Choose the one command that continues the merge; `None` if it is complete."""
    if done.delivery is not None and done.delivery.command:
        return escape(done.delivery.command)
    if done.delivery is None and done.commit is not None and done.branch_fault is None:
        return f"git merge {escape(done.branch)}"
    stuck = [result for result in done.results if result.status.needs_a_person]
    stuck.sort(key=lambda result: result.status is not MergeStatus.CONFLICTS)
    return f"{program} diff {escape(stuck[0].session)}" if stuck else None


def undo_lines(done: MergeReport, paint: Paint, *, before: Collection[str] = ()) -> Iterator[str]:
    """Describe what was taken out, besides what was out *before*, and what is left."""
    stuck = [result for result in done.results if result.status.needs_a_person]
    yield from _table(stuck, paint)
    removed = [session for session in done.left_out if session not in before]
    yield f"removed from {escape(done.branch)}: {some(removed) or 'nothing, it was not there'}"
    if done.commit is None:
        yield f"{escape(done.branch)} is empty and was deleted; the agents' own branches stay"
    if done.delivery is not None:
        yield delivery_line(done.delivery, paint)
        if done.delivery.command:
            yield f"{INDENT}{escape(done.delivery.command)}"


def preview_lines(seen: Preview, paint: Paint) -> Iterator[str]:
    """Draw which sessions conflict, and in which files."""
    if not seen.clashes:
        touching = f"; {count(len(seen.overlaps), 'pair')} changed the same files" if seen.overlaps else ""
        yield f"no conflicts among {count(len(seen.sessions), 'session')}{touching}"
        return
    yield from _matrix(seen, paint)
    for clash in seen.clashes:
        yield f"{escape(clash.one)} {paint('conflicts with', 'bad')} {escape(clash.other)}"
        yield from (f"{INDENT}{_conflict(conflict)}" for conflict in clash.conflicts[:NAMED])
    if not seen.is_whole:
        yield "not all pairs were checked; merging reports the rest"


def confirm_line(ready: MergeReport, into: str) -> str:
    """Ask whether to deliver the branch."""
    return f"deliver {escape(ready.branch)} into {escape(into)}? [y/N]"


def not_delivered_line(ready: MergeReport, into: str, program: str) -> str:
    """Say that nothing was delivered, and how to be asked again."""
    again = f"{program} merge {escape(ready.run)} --into {escape(shlex.quote(into))}"
    return f"not delivered: {escape(into)} is unchanged; `{again}` asks again"


def _matrix(seen: Preview, paint: Paint) -> Iterator[str]:
    """Yield a row for each session that overlaps with another; `x` is a conflict, `~` the same files without one."""
    marks = {pair: "~" for first, second in seen.overlaps for pair in ((first, second), (second, first))}
    marks |= {pair: "x" for clash in seen.clashes for pair in ((clash.one, clash.other), (clash.other, clash.one))}
    names = [name for name in seen.sessions if any(name == first for first, _ in marks)]
    lines = list(matrix(names, marks, paint))
    yield from (*lines, "") if lines else ()


def _table(results: Sequence[MergeResult], paint: Paint) -> Iterator[str]:
    rows = [
        [escape(result.session), result.status.value, (result.commit or "")[:10], _reason(result)] for result in results
    ]
    if not rows:
        return
    head, *padded = columns([["session", "status", "commit", ""], *rows])
    yield INDENT + heading(head, paint)
    for result, row in zip(results, padded, strict=True):
        row[1] = paint(row[1], TONES[result.status])
        yield INDENT + join_cells(row)
        yield from (f"{INDENT}{INDENT}{_conflict(conflict)}" for conflict in result.conflicts[:NAMED])
        if len(result.conflicts) > NAMED:
            yield f"{INDENT}{INDENT}… and {len(result.conflicts) - NAMED} more"


def _reason(result: MergeResult) -> str:
    """Return the first line of the message; the rest is the log of a verification."""
    return flat(result.message.partition("\n")[0])


def _conflict(conflict: Conflict) -> str:
    partners = f" (with {some(conflict.partners, NAMED)})" if conflict.partners else ""
    return f"{conflict.kind.value}: {some(conflict.paths, NAMED)}{partners}"


def delivery_line(delivery: Delivery, paint: Paint, *, is_made: bool = True) -> str:
    """Describe what happened to the user's branch; without an integration branch there is nothing to deliver."""
    into = escape(delivery.into)
    match delivery.status:
        case DeliveryStatus.DELIVERED if delivery.is_undo:
            return f"{paint('taken out', 'good')} of {into} again: {delivery.old[:10]} → {delivery.new[:10]}"
        case DeliveryStatus.UNCHANGED if delivery.is_undo:
            return f"{into} does not contain it"
        case DeliveryStatus.DELIVERED:
            return f"{paint('delivered', 'good')} into {into}: {delivery.old[:10]} → {delivery.new[:10]}"
        case DeliveryStatus.UNCHANGED:
            return f"{into} already contains it" if is_made else f"nothing to deliver into {into}"
        case DeliveryStatus.LEFT:
            return f"{paint('not delivered', 'warn')} into {into}: {flat(delivery.message)}; to finish:"
        case DeliveryStatus.WAITING:
            return f"{paint('not delivered yet', 'warn')} into {into}: {escape(delivery.message)} as said below"


def _next(done: MergeReport, program: str, *, is_asking: bool) -> Iterator[str]:
    """Yield the commands to type next."""
    if done.delivery is not None and done.delivery.command:
        yield escape(done.delivery.command)
    elif done.delivery is None and done.commit is not None:
        yield f"git diff {done.start[:10]} {escape(done.branch)}"
        if done.branch_fault is None and not is_asking:
            yield f"{program} merge {escape(done.run)} --into BRANCH"
    conflicting = [result for result in done.results if result.status is MergeStatus.CONFLICTS]
    for result in conflicting[:1]:
        yield f"{program} diff {escape(result.session)}"
