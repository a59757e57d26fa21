"""A chain of merges: the sessions merged so far, and how another is added."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.git.commits import Ancestry, Commit, original
from shoal.git.conflicts import Clean, Conflicted, Tried
from shoal.git.merge import MergeRepository
from shoal.merge.candidates import Candidate
from shoal.model.merge import Conflict, MergeResult, MergeStatus, Preview, Strategy

SUBJECT_CHARS = 72


def merge_message(run: str, candidate: Candidate) -> str:
    """Write the message of a merge of one session."""
    return _message("Merge ", run, candidate)


def squash_message(run: str, candidate: Candidate) -> str:
    """Write the message of the one commit that holds all work of a session."""
    return _message("", run, candidate)


def _message(verb: str, run: str, candidate: Candidate) -> str:
    title, task = f"{verb}{_one_line(candidate.title)}", _one_line(candidate.subject)
    room = max(0, SUBJECT_CHARS - len(title))
    is_whole = len(task) <= room
    beginning = task if is_whole else _cut(task, room)
    body = "" if is_whole else f"{task}\n\n"
    return f"{title}{': ' if beginning else ''}{beginning}\n\n{body}{_trailers(run, [candidate.session])}"


def _cut(text: str, chars: int) -> str:
    """Cut *text* between words; nothing is left of it if not even a few fit."""
    words = text[: max(0, chars - 1)].rpartition(" ")[0].rstrip(" ,.;:")
    return f"{words}…" if words else ""


def octopus_message(run: str, sessions: Sequence[str]) -> str:
    """Write the message of a merge of several sessions."""
    return f"Merge {len(sessions)} sessions of {run}\n\n{_trailers(run, sessions)}"


def update_message(run: str, commit: str) -> str:
    """Write the message of a merge of the target into the integration branch."""
    return f"Merge {commit[:10]} into shoal/{run}\n\nShoal-Run: {run}\n"


def revert_message(run: str, sessions: Sequence[str]) -> str:
    """Write the message of the commit that takes sessions out again."""
    subject = sessions[0] if len(sessions) == 1 else f"{len(sessions)} sessions of {run}"
    lines = "".join(f"Shoal-Undone: {session}\n" for session in sessions)
    return f"Revert {subject}\n\nShoal-Run: {run}\n{lines}"


def _trailers(run: str, sessions: Sequence[str]) -> str:
    return f"Shoal-Run: {run}\n" + "".join(f"Shoal-Session: {session}\n" for session in sessions)


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


MAX_PATHS = 200
"""Files of a conflict that are reported and recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The result of the merges so far.

    *history_commit* is what git merges with: a commit with the tip's files and the histories of all sessions, so that
    sessions which build on each other never conflict, whatever the tip's own commits look like.
    """

    run: str
    form: Strategy
    start: str
    origin: str
    """The tip before anything was added."""
    tip: str
    history_commit: str
    tree: str
    bases: tuple[str, ...] = ()
    """The commits that the origin builds on; the origin itself may be new."""
    results: tuple[MergeResult, ...] = ()
    """The results of those that are merged, in order."""
    refused: tuple[MergeResult, ...] = ()
    added: tuple[str, ...] = ()
    """The sessions' own commits that were added since the origin."""
    base_fault: str | None = None
    """Why the start of the chain itself fails, if that was found out."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The sessions' own commits that are merged."""
        return tuple(result.source for result in self.results if result.source is not None)

    @property
    def known(self) -> tuple[str, ...]:
        """Commits that the repository already has."""
        return tuple(dict.fromkeys((self.start, *self.bases, *self.sources)))

    def without(self, result: MergeResult) -> "Chain":
        """Record that a session is not merged, replacing its earlier result."""
        others = (other for other in self.refused if other.session != result.session)
        return replace(self, refused=(*others, result))

    def forget_refusal(self, session: str) -> "Chain":
        """Forget that a session was refused."""
        return replace(self, refused=tuple(other for other in self.refused if other.session != session))


@dataclass(frozen=True, slots=True)
class CommitBuilder:
    """Adds sessions to a chain by writing commits to *bench*."""

    bench: MergeRepository
    ancestry: Ancestry
    preview: Preview

    async def add(self, chain: Chain, candidate: Candidate) -> Chain:
        """Add *candidate* to the chain, or its conflicts to what the chain refused."""
        if candidate.source in self._reachable(chain) or candidate.source not in self.ancestry.parents:
            return _append_merged(
                chain, candidate, commit=self._find_merge(chain, candidate), message="its work is already included"
            )
        match await self.bench.try_merge(chain.history_commit, candidate.source):
            case Conflicted() as conflicted:
                return chain.without(self._refuse(chain, candidate, conflicted))
            case Clean(tree) if tree == chain.tree:
                return chain.without(_result(candidate, MergeStatus.NO_CHANGES, "its changes are already included"))
            case Clean(tree):
                is_replayed = chain.form is Strategy.REBASE
                return await self._replay(chain, candidate) if is_replayed else self.join(chain, candidate, tree)

    def finish(self, chain: Chain) -> Chain:
        """Write the one commit of an octopus merge; other forms have their commits already."""
        if chain.form is not Strategy.OCTOPUS or not chain.added:
            return chain
        names = [result.session for result in chain.results if result.source in chain.added]
        parents = (chain.origin, *self._topmost(chain.added))
        tip = self.bench.commit(Commit(tree=chain.tree, parents=parents, message=octopus_message(chain.run, names)))
        results = (replace(result, commit=tip) if result.source in chain.added else result for result in chain.results)
        return replace(chain, tip=tip, results=tuple(results))

    def join(self, chain: Chain, candidate: Candidate, tree: str) -> Chain:
        """Add *candidate* as a *tree* that contains both sides, in one commit if its own commits cannot be replayed."""
        history = Commit(tree=tree, parents=(chain.history_commit, candidate.source), message="history\n")
        match chain.form:
            case Strategy.SQUASH | Strategy.REBASE:
                text = squash_message(chain.run, candidate)
                tip = self.bench.commit(Commit(tree=tree, parents=(chain.tip,), message=text))
                return _append_merged(
                    chain, candidate, commit=tip, history_commit=self.bench.commit(history), tree=tree
                )
            case Strategy.OCTOPUS:
                return _append_merged(
                    chain, candidate, commit=chain.tip, history_commit=self.bench.commit(history), tree=tree
                )
            case _:
                text = merge_message(chain.run, candidate)
                tip = self.bench.commit(Commit(tree=tree, parents=(chain.tip, candidate.source), message=text))
                return _append_merged(chain, candidate, commit=tip, history_commit=tip, tree=tree)

    async def _replay(self, chain: Chain, candidate: Candidate) -> Chain:
        """Replay each commit of the session on top of the chain."""
        own = self.ancestry.reach([candidate.source]) - self._reachable(chain)
        tip, tree = chain.tip, chain.tree
        for commit in self.ancestry.without_merges(own):
            before, after = (await self.bench.tree(f"{commit}^"), await self.bench.tree(commit))
            tried = await self.carry_change(tree, before, after)
            if isinstance(tried, Conflicted):
                return chain.without(self._refuse(chain, candidate, tried))
            if tried.tree != tree:
                tree = tried.tree
                tip = await self._copy_commit(commit, tree, tip)
        history = self.bench.commit(
            Commit(tree=tree, parents=(chain.history_commit, candidate.source), message="history\n")
        )
        return _append_merged(chain, candidate, commit=tip, history_commit=history, tree=tree)

    async def carry_change(self, tree: str, before: str, after: str) -> Tried:
        """Apply the change from tree *before* to tree *after* to *tree*."""
        base = self.bench.commit(Commit(tree=before, parents=(), message="before\n"))
        ours, theirs = (
            self.bench.commit(Commit(tree=side, parents=(base,), message="side\n")) for side in (tree, after)
        )
        return await self.bench.try_merge(ours, theirs)

    async def _copy_commit(self, commit: str, tree: str, parent: str) -> str:
        """Copy *commit*, with its own author, date and message."""
        source = original((await self.bench.git("cat-file", "commit", commit)).stdout)
        copy = Commit(
            tree=tree, parents=(parent,), message=source.message, author=source.author, encoding=source.encoding
        )
        return self.bench.commit(copy)

    def _reachable(self, chain: Chain) -> frozenset[str]:
        return self.ancestry.reach((*chain.sources, chain.tip, chain.origin))

    def _find_merge(self, chain: Chain, candidate: Candidate) -> str:
        """Find the commit that merged the work of *candidate* along with that of another session."""
        for result in chain.results:
            if result.source and result.commit and candidate.source in self.ancestry.reach([result.source]):
                return result.commit
        return chain.origin

    def _topmost(self, commits: Sequence[str]) -> list[str]:
        below = {commit: self.ancestry.reach([commit]) for commit in commits}
        return [commit for commit in commits if not any(commit in below[other] for other in commits if other != commit)]

    def _refuse(self, chain: Chain, candidate: Candidate, found: Conflicted) -> MergeResult:
        merged = {result.session for result in chain.results}
        partners = tuple(name for name in self.preview.partners(candidate.session) if name in merged)
        conflicts = tuple(
            self._name_partners(conflict, candidate, partners) for conflict in found.conflicts[:MAX_PATHS]
        )
        count = len(found.paths)
        files = "1 file" if count == 1 else f"{count} files"
        text = f"{files} in conflict with {', '.join(partners[:5]) or 'the branch'}"
        return MergeResult(
            session=candidate.session,
            status=MergeStatus.CONFLICTS,
            source=candidate.source,
            message=text,
            conflicts=conflicts,
        )

    def _name_partners(self, conflict: Conflict, candidate: Candidate, partners: Sequence[str]) -> Conflict:
        """Name the partners whose pair with *candidate* has a conflict in one of the same files."""
        own = [
            other
            for clash in self.preview.clashes
            for mine, other in ((clash.one, clash.other), (clash.other, clash.one))
            if mine == candidate.session
            and other in partners
            and any(set(conflict.paths) & set(other_conflict.paths) for other_conflict in clash.conflicts)
        ]
        return replace(conflict, paths=conflict.paths[:MAX_PATHS], partners=tuple(own or partners))


def _result(candidate: Candidate, status: MergeStatus, text: str, commit: str | None = None) -> MergeResult:
    return MergeResult(session=candidate.session, status=status, source=candidate.source, commit=commit, message=text)


def _append_merged(
    chain: Chain,
    candidate: Candidate,
    *,
    commit: str,
    message: str = "",
    history_commit: str | None = None,
    tree: str | None = None,
) -> Chain:
    result = _result(candidate, MergeStatus.MERGED, message, commit)
    is_new = history_commit is not None
    return replace(
        chain,
        tip=commit if is_new else chain.tip,
        history_commit=history_commit or chain.history_commit,
        tree=tree or chain.tree,
        results=(*chain.results, result),
        added=(*chain.added, candidate.source) if is_new else chain.added,
    )
