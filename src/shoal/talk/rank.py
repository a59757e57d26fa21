"""Find notes by their words, or by a ranking that another package brings, such as one of embeddings."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from shoal.model.notes import Note
from shoal.store.notes import NoteStore

ENTRY_POINTS = "shoal.recall"
"""Of a function that takes a query and a list of texts, and returns how well each fits, as a number."""
MOST_RANKED = 500
RANK_SECONDS = 20.0
Rank = Callable[[str, Sequence[str]], Sequence[float]]


async def rank_notes(store: NoteStore, query: str, run: str, most: int) -> list[Note]:
    """Find the notes that fit *query* best; a ranking that fails leaves it to the words."""
    rank = load_rank()
    if rank is None:
        return store.search(query, run, most)
    matches = store.search(query, run, MOST_RANKED)
    known = {note.at for note in matches}
    notes = [*matches, *(note for note in store.list_latest(run, MOST_RANKED) if note.at not in known)][:MOST_RANKED]
    texts = [f"{note.at.key}\n{note.text}" for note in notes]
    try:
        async with asyncio.timeout(RANK_SECONDS):
            scores = await asyncio.to_thread(rank, query, texts)  # a model may take long
        order = sorted(zip(scores, range(len(notes)), strict=True), key=lambda each: (-float(each[0]), each[1]))
    except Exception:  # a package of somebody else's
        return matches[:most]
    return [notes[index] for _, index in order[:most]]


@functools.cache
def load_rank() -> Rank | None:
    """Load the ranking of another package, if one is installed."""
    found = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    try:
        return found[0].load() if found else None
    except Exception:  # a package of somebody else's
        return None
