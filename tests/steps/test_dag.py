"""Work with dependencies, for any graph; and in a run, a slow step delays no unrelated one."""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.steps.dag import in_turn
from tests.cli.flows import ran

Graph = dict[str, list[str]]
TURNS = 10  # of the loop, in which all that can begin has begun


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph without a cycle, its pieces in any order."""
    count = draw(st.integers(1, 12))
    needs = {
        f"n{number}": draw(st.lists(st.sampled_from([f"n{one}" for one in range(number)]), unique=True))
        if number
        else []
        for number in range(count)
    }
    return {name: needs[name] for name in draw(st.permutations(list(needs)))}


class Stage:
    """Pieces of work that end when they are told to."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.tidied: list[str] = []
        self._words: dict[str, asyncio.Future[None]] = {}

    async def perform(self, name: str, ended: Mapping[str, str]) -> str:
        assert [ended[need] for need in self.graph[name]] == [f"did {need}" for need in self.graph[name]]
        self.begun.append(name)
        self._words[name] = asyncio.get_running_loop().create_future()
        try:
            await self._words[name]
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.tidied.append(name)
            raise
        self.ended.append(name)
        return f"did {name}"

    @property
    def ready(self) -> set[str]:
        """All whose needs have ended."""
        return {name for name, needs in self.graph.items() if set(needs) <= set(self.ended)}

    @property
    def running(self) -> list[str]:
        return [name for name in self.begun if not self._words[name].done()]

    async def end(self, name: str, error: Exception | None = None) -> None:
        if error is None:
            self._words[name].set_result(None)
        else:
            self._words[name].set_exception(error)
        await settled()


async def settled() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def played(scene: Coroutine[None, None, None]) -> None:
    """Play a scene, which has to leave nothing running behind it."""

    async def alone() -> None:
        await scene
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(alone())


async def some_ended(stage: Stage, data: st.DataObject) -> None:
    """End some of the work, any that runs; something still runs then."""
    for _ in range(data.draw(st.integers(0, len(stage.graph) - 1))):
        await stage.end(data.draw(st.sampled_from(stage.running)))


@given(graphs(), st.data())
def test_each_piece_begins_the_moment_its_own_needs_have_ended_and_never_earlier(
    graph: Graph, data: st.DataObject
) -> None:
    """Whatever ends next, all that runs is what can run: so no piece waits for one that it does not need."""

    async def scene() -> None:
        stage = Stage(graph)
        async with asyncio.TaskGroup() as group:
            whole = group.create_task(in_turn(graph, stage.perform))
            await settled()
            while stage.running:
                assert set(stage.begun) == stage.ready
                await stage.end(data.draw(st.sampled_from(stage.running)))

        assert whole.result() == {name: f"did {name}" for name in graph}
        assert sorted(stage.begun) == sorted(graph), "each of them once"
        places = {name: place for place, name in enumerate(stage.begun)}
        assert all(places[need] < places[name] for name in graph for need in graph[name])

    played(scene())


@given(graphs(), st.data())
def test_the_first_error_cancels_the_rest_and_is_raised_when_they_have_tidied_up(
    graph: Graph, data: st.DataObject
) -> None:
    async def scene() -> None:
        stage, error = Stage(graph), ValueError("broken")
        whole = asyncio.ensure_future(in_turn(graph, stage.perform))
        await settled()
        await some_ended(stage, data)
        broken = data.draw(st.sampled_from(stage.running))
        others = set(stage.running) - {broken}
        begun = list(stage.begun)
        await stage.end(broken, error)
        with pytest.raises(ValueError, match="broken") as caught:
            await whole

        assert caught.value is error
        assert set(stage.tidied) == others
        assert stage.begun == begun, "nothing begins after it"

    played(scene())


@given(graphs(), st.data())
def test_a_cancel_from_outside_leaves_nothing_running(graph: Graph, data: st.DataObject) -> None:
    async def scene() -> None:
        stage = Stage(graph)
        whole = asyncio.ensure_future(in_turn(graph, stage.perform))
        await settled()
        await some_ended(stage, data)
        running, begun = set(stage.running), list(stage.begun)
        whole.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await whole

        assert whole.cancelled()
        assert set(stage.tidied) == running
        assert stage.begun == begun

    played(scene())


async def test_nothing_to_do_is_done_at_once() -> None:
    assert await in_turn({}, Stage({}).perform) == {}


def test_one_slow_step_never_delays_an_unrelated_chain(repo: Path, tmp_path: Path) -> None:
    """The slow step ends only when the last of the chain has run, so it would wait for ever if it held up the chain."""
    over = tmp_path / "over"
    done = ran(
        repo,
        f"""
        steps:
          - {{name: slow, agent: do, prompt: 'until [ -e {over} ]; do sleep 0.02; done; echo slow > slow', timeout: 40}}
          - {{name: first, agent: do, prompt: 'echo 1 > chain'}}
          - {{name: second, needs: first, agent: do, prompt: 'echo 2 >> chain'}}
          - {{name: third, needs: second, agent: do, prompt: 'echo 3 >> chain; touch {over}'}}
          - {{name: last, needs: [slow, third], agent: do, prompt: 'cat chain slow > all'}}
        """,
        runtime="sandbox: none, network: host, max_concurrent_workers: 2",
    )

    assert done.said.code == 0, done.said.err
    assert done.shown("last", "all").split() == ["1", "2", "3", "slow"]
