"""A chain of merges: what has come together so far, and how one more session is added to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.git.ancestry import Ancestry
from shoal.git.commits import Commit, original
from shoal.git.conflicts import Clean, Conflicted, Tried
from shoal.git.merge import MergeRepository
from shoal.merge.candidates import Candidate
from shoal.model.merge import Conflict, MergeResult, MergeStatus, Preview, Strategy

SUBJECT = 60


def message(run: str, one: Candidate) -> str:
    """Say whose work a merge brings."""
    return f"Merge {one.session}\n\n{_task_line(one)}{_trailers(run, [one.session])}"


def squash_message(run: str, one: Candidate) -> str:
    """Say in one commit what a session did."""
    asked = _line(one.subject)
    subject = f"{one.session}: {asked[:SUBJECT]}" if asked else one.session
    return f"{subject}\n\n{_task_line(one) if len(asked) > SUBJECT else ''}{_trailers(run, [one.session])}"


def all_message(run: str, sessions: Sequence[str]) -> str:
    """Say whose work one merge brings together."""
    return f"Merge {len(sessions)} sessions of {run}\n\n{_trailers(run, sessions)}"


def update_message(run: str, commit: str) -> str:
    """Say that a branch was brought up to date."""
    return f"Merge {commit[:10]} into shoal/{run}\n\nShoal-Run: {run}\n"


def revert_message(run: str, sessions: Sequence[str]) -> str:
    """Say whose work is taken out again."""
    some = sessions[0] if len(sessions) == 1 else f"{len(sessions)} sessions of {run}"
    lines = "".join(f"Shoal-Undone: {session}\n" for session in sessions)
    return f"Revert {some}\n\nShoal-Run: {run}\n{lines}"


def _task_line(one: Candidate) -> str:
    asked = _line(one.subject)
    return f"{asked}\n\n" if asked else ""


def _trailers(run: str, sessions: Sequence[str]) -> str:
    return f"Shoal-Run: {run}\n" + "".join(f"Shoal-Session: {session}\n" for session in sessions)


def _line(text: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


MOST_PATHS = 200
"""So many files of a conflict are told and recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What has come together so far.

    *truth* is what git merges with: a commit that has the tip's files and all the sessions' histories, so that
    sessions which stand on each other never conflict, whatever the tip's own commits look like.
    """

    run: str
    form: Strategy
    start: str
    origin: str
    """The tip before anything was added."""
    tip: str
    truth: str
    tree: str
    grounds: tuple[str, ...] = ()
    """What the origin stands on; it may itself be new."""
    results: tuple[MergeResult, ...] = ()
    """Those that are merged, in their order."""
    refused: tuple[MergeResult, ...] = ()
    added: tuple[str, ...] = ()
    """The sessions' own commits that were added since the origin."""
    base_fault: str | None = None
    """Why what they were to land on is not good itself, where that came to light."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The sessions' own commits that are merged."""
        return tuple(one.source for one in self.results if one.source is not None)

    @property
    def known(self) -> tuple[str, ...]:
        """Commits that the repository has already."""
        return tuple(dict.fromkeys((self.start, *self.grounds, *self.sources)))

    def without(self, result: MergeResult) -> "Chain":
        """Go on without a session; what was said of it before counts no more."""
        others = (one for one in self.refused if one.session != result.session)
        return replace(self, refused=(*others, result))

    def has(self, session: str) -> "Chain":
        """Forget that a session was refused."""
        return replace(self, refused=tuple(one for one in self.refused if one.session != session))


@dataclass(frozen=True, slots=True)
class CommitBuilder:
    """Adds sessions to a chain, at a bench, by what is known of all of them."""

    bench: MergeRepository
    ancestry: Ancestry
    preview: Preview

    async def grown(self, chain: Chain, one: Candidate) -> Chain:
        """Add *one* to the chain, or its conflicts to what is refused."""
        if one.source in self._reachable(chain) or one.source not in self.ancestry.parents:
            return _append_merged(chain, one, commit=self._holder(chain, one), said="it was there already")
        match await self.bench.try_merge(chain.truth, one.source):
            case Conflicted() as conflicted:
                return chain.without(self._refusal(chain, one, conflicted))
            case Clean(tree) if tree == chain.tree:
                said = "what it changes is there already"
                return chain.without(_result(one, MergeStatus.NO_CHANGES, said))
            case Clean(tree):
                is_replayed = chain.form is Strategy.REBASE
                return await self._replay(chain, one) if is_replayed else self.join(chain, one, tree)

    def finish(self, chain: Chain) -> Chain:
        """Make the one commit of an octopus; all others have theirs."""
        if chain.form is not Strategy.OCTOPUS or not chain.added:
            return chain
        names = [one.session for one in chain.results if one.source in chain.added]
        parents = (chain.origin, *self._topmost(chain.added))
        tip = self.bench.commit(Commit(tree=chain.tree, parents=parents, message=all_message(chain.run, names)))
        results = (replace(one, commit=tip) if one.source in chain.added else one for one in chain.results)
        return replace(chain, tip=tip, results=tuple(results))

    def join(self, chain: Chain, one: Candidate, tree: str) -> Chain:
        """Add *one* by a *tree* that holds both sides, by a single commit where its own ones cannot be made again."""
        truth = Commit(tree=tree, parents=(chain.truth, one.source), message="truth\n")
        match chain.form:
            case Strategy.SQUASH | Strategy.REBASE:
                said = squash_message(chain.run, one)
                tip = self.bench.commit(Commit(tree=tree, parents=(chain.tip,), message=said))
                return _append_merged(chain, one, commit=tip, truth=self.bench.commit(truth), tree=tree)
            case Strategy.OCTOPUS:
                return _append_merged(chain, one, commit=chain.tip, truth=self.bench.commit(truth), tree=tree)
            case _:
                said = message(chain.run, one)
                tip = self.bench.commit(Commit(tree=tree, parents=(chain.tip, one.source), message=said))
                return _append_merged(chain, one, commit=tip, truth=tip, tree=tree)

    async def _replay(self, chain: Chain, one: Candidate) -> Chain:
        """Make each commit of the session again on top of the chain."""
        own = self.ancestry.reach([one.source]) - self._reachable(chain)
        tip, tree = chain.tip, chain.tree
        for commit in self.ancestry.without_merges(own):
            before, after = (await self.bench.tree(f"{commit}^"), await self.bench.tree(commit))
            tried = await self.carry_change(tree, before, after)
            if isinstance(tried, Conflicted):
                return chain.without(self._refusal(chain, one, tried))
            if tried.tree != tree:
                tree = tried.tree
                tip = await self._copy_commit(commit, tree, tip)
        truth = self.bench.commit(Commit(tree=tree, parents=(chain.truth, one.source), message="truth\n"))
        return _append_merged(chain, one, commit=tip, truth=truth, tree=tree)

    async def carry_change(self, tree: str, before: str, after: str) -> Tried:
        """Bring the change from *before* to *after*, all of them trees, into *tree*."""
        ground = self.bench.commit(Commit(tree=before, parents=(), message="before\n"))
        ours, theirs = (
            self.bench.commit(Commit(tree=side, parents=(ground,), message="side\n")) for side in (tree, after)
        )
        return await self.bench.try_merge(ours, theirs)

    async def _copy_commit(self, commit: str, tree: str, parent: str) -> str:
        """Make *commit* again, with its own author, date and words."""
        said = original((await self.bench.git("cat-file", "commit", commit)).stdout)
        made = Commit(tree=tree, parents=(parent,), message=said.message, author=said.author, encoding=said.encoding)
        return self.bench.commit(made)

    def _reachable(self, chain: Chain) -> frozenset[str]:
        return self.ancestry.reach((*chain.sources, chain.tip, chain.origin))

    def _holder(self, chain: Chain, one: Candidate) -> str:
        """Name the commit by which the work of *one* came in with that of another."""
        for result in chain.results:
            if result.source and result.commit and one.source in self.ancestry.reach([result.source]):
                return result.commit
        return chain.origin

    def _topmost(self, commits: Sequence[str]) -> list[str]:
        below = {commit: self.ancestry.reach([commit]) for commit in commits}
        return [one for one in commits if not any(one in below[other] for other in commits if other != one)]

    def _refusal(self, chain: Chain, one: Candidate, found: Conflicted) -> MergeResult:
        merged = {result.session for result in chain.results}
        partners = tuple(name for name in self.preview.partners(one.session) if name in merged)
        conflicts = tuple(self._name_partners(conflict, one, partners) for conflict in found.conflicts[:MOST_PATHS])
        count = len(found.paths)
        said = f"{count} {'file' if count == 1 else 'files'} in conflict with {', '.join(partners[:5]) or 'the branch'}"
        return MergeResult(
            session=one.session, status=MergeStatus.CONFLICTS, source=one.source, message=said, conflicts=conflicts
        )

    def _name_partners(self, conflict: Conflict, one: Candidate, partners: Sequence[str]) -> Conflict:
        """Say with whom it is: those whose pair with *one* has a conflict in one of the same files."""
        own = [
            other
            for clash in self.preview.clashes
            for mine, other in ((clash.one, clash.other), (clash.other, clash.one))
            if mine == one.session
            and other in partners
            and any(set(conflict.paths) & set(seen.paths) for seen in clash.conflicts)
        ]
        return replace(conflict, paths=conflict.paths[:MOST_PATHS], partners=tuple(own or partners))


def _result(one: Candidate, status: MergeStatus, said: str, commit: str | None = None) -> MergeResult:
    return MergeResult(session=one.session, status=status, source=one.source, commit=commit, message=said)


def _append_merged(
    chain: Chain, one: Candidate, *, commit: str, said: str = "", truth: str | None = None, tree: str | None = None
) -> Chain:
    result = _result(one, MergeStatus.MERGED, said, commit)
    is_new = truth is not None
    return replace(
        chain,
        tip=commit if is_new else chain.tip,
        truth=truth or chain.truth,
        tree=tree or chain.tree,
        results=(*chain.results, result),
        added=(*chain.added, one.source) if is_new else chain.added,
    )
