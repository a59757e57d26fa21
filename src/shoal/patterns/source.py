"""The source of a pattern's calls: any iterable, lazy, endless or async."""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator, Sized
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar, overload

from shoal.errors import BadInput

T = TypeVar("T")
Item = TypeVar("Item")

Call: TypeAlias = Callable[[], Awaitable[T]]
Source: TypeAlias = Iterable[Item] | AsyncIterable[Item]


def size_of(items: Source[Item]) -> int | None:
    """Return the number of items, if it is known."""
    return len(items) if isinstance(items, Sized) else None


async def each(items: Source[Item]) -> AsyncGenerator[Item, None]:
    """Return the items of any iterable; an async generator is closed at the end."""
    if not isinstance(items, AsyncIterable):
        for item in items:
            yield item
        return
    try:
        async for item in items:
            yield item
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def calls_of(function: Callable[[Item], Awaitable[T]], items: Source[Item]) -> AsyncGenerator[Call[T], None]:
    """Make one call of *function* for each item, as it is pulled."""
    async with aclosing(each(items)) as pulled:
        async for item in pulled:
            yield partial(function, item)


@overload
def chunked(items: AsyncIterable[Item], size: int) -> AsyncGenerator[list[Item], None]: ...
@overload
def chunked(items: Iterable[Item], size: int) -> Iterator[list[Item]]: ...
def chunked(items: Source[Item], size: int) -> Iterator[list[Item]] | AsyncGenerator[list[Item], None]:
    """Yield the items in lists of *size*, the last one shorter; lazily, and asynchronously for an async iterable."""
    if size < 1:
        raise BadInput(f"a chunk has at least 1 item, not {size}")
    return _async_chunks(items, size) if isinstance(items, AsyncIterable) else _chunks(items, size)


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


async def _async_chunks(items: AsyncIterable[Item], size: int) -> AsyncGenerator[list[Item], None]:
    chunk: list[Item] = []
    async with aclosing(each(items)) as pulled:
        async for item in pulled:
            chunk.append(item)
            if len(chunk) == size:
                yield chunk
                chunk = []
    if chunk:
        yield chunk
