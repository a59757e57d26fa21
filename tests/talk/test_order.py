"""Many agents write to each other at once: nothing is lost, and each pair's messages stay in order."""

import asyncio
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.talk.hubs import Scene, open_scene

AGENTS, MESSAGES = 12, 40


@pytest.mark.deep
async def test_nothing_is_lost_and_every_pair_keeps_its_order(tmp_path: Path) -> None:
    names = [f"a{number}" for number in range(AGENTS)]
    got: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    async with asyncio.timeout(240), open_scene(tmp_path, *names) as scene, asyncio.TaskGroup() as group:
        for place, name in enumerate(names):
            others = [names[(place + step) % AGENTS] for step in (1, 2, 3)]
            group.create_task(_write(scene, name, others))
            group.create_task(_read(scene, name, 3 * MESSAGES, got))

    assert len(got) == 3 * AGENTS
    assert all(numbers == list(range(MESSAGES)) for numbers in got.values())


async def _write(scene: Scene, name: str, others: list[str]) -> None:
    client = scene.client(name)
    for number in range(MESSAGES):
        for other in others:
            assert (await client.call("send", to=other, text=str(number))).startswith("sent")


async def _read(scene: Scene, name: str, wanted: int, got: defaultdict[tuple[str, str], list[int]]) -> None:
    client, read = scene.client(name), 0
    while read < wanted:
        text = await client.call("inbox", wait=30, most=50)
        for sender, number in re.findall(r"^Message (\w+):\d+ .*\n> (\d+)$", text, re.M):
            got[sender, name].append(int(number))
            read += 1
