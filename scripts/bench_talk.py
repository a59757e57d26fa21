"""Measure what messages between agents cost the coordinator: `python -m scripts.bench_talk [AGENTS EACH_SECOND SECONDS]`.

The agents are clients in another process, which speak MCP to the coordinator's server over loopback, as `shoal-talk`
does. Every message is a call of its own, recorded in the ledger before it is delivered, and counted at its arrival.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.talk.hubs import Caller, open_scene

AGENTS, EACH_SECOND, SECONDS = 50, 1000, 20.0
NEIGHBOURS = 5
WAIT_SECONDS = 2.0


async def main(agents: int, each_second: int, seconds: float) -> int:
    """Serve the agents, and print what it cost."""
    names = [f"a{number}" for number in range(agents)]
    with tempfile.TemporaryDirectory() as folder:
        async with open_scene(Path(folder), *names, keeps_events=False) as scene:
            given = {name: (scene.ports[name], scene.peers[name].token) for name in names}
            words = [sys.executable, "-m", "scripts.bench_talk", "--agents", str(each_second), str(seconds)]
            began, used = time.monotonic(), time.process_time()
            child = await asyncio.create_subprocess_exec(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            out, _ = await child.communicate(json.dumps(given).encode())
            took, cpu = time.monotonic() - began, time.process_time() - used
    said = json.loads(out)
    print(
        f"{agents} agents, {said['sent']} messages in {said['seconds']:.1f} s: {said['sent'] / said['seconds']:.0f}/s"
    )
    print(
        f"received {said['received']}, lost {said['lost']}, out of order {said['disordered']}, refused {said['refused']}"
    )
    print(f"coordinator: {cpu:.2f} s CPU in {took:.1f} s, {100 * cpu / took:.1f} % of a core")
    print(f"{1e6 * cpu / max(1, said['sent']):.0f} µs for a message; slowest call {1000 * said['slowest']:.0f} ms")
    return 1 if said["lost"] or said["disordered"] else 0


class Agents:
    """All agents: each sends to its neighbours in turn, and reads what it gets."""

    def __init__(self, given: dict[str, tuple[int, str]]) -> None:
        self.given = given
        self.names = list(given)
        self.sent: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.received: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self.refused = 0
        self.slowest = 0.0
        self.is_over = False

    async def send(self, name: str, pause: float, seconds: float) -> None:
        """Send at a steady rate."""
        caller, place = Caller(*self.given[name]), self.names.index(name)
        began, number = time.monotonic(), 0
        while (due := began + number * pause) < began + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            to = self.names[(place + 1 + number % NEIGHBOURS) % len(self.names)]
            at = time.monotonic()
            answer = await caller.call("send", to=to, text=str(self.sent[name, to]))
            self.slowest = max(self.slowest, time.monotonic() - at)
            if answer.startswith("sent"):
                self.sent[name, to] += 1
            else:
                self.refused += 1
            number += 1
        await caller.close()

    async def read(self, name: str) -> None:
        """Read until all is over and nothing is left."""
        caller = Caller(*self.given[name])
        while True:
            was_over = self.is_over
            text = await caller.call("inbox", wait=WAIT_SECONDS, most=50)
            if text == "no messages" and was_over:
                break
            sender = ""
            for line in text.split("\n"):
                if line.startswith("Message "):
                    sender = line.split(" ")[1].partition(":")[0]
                elif line.startswith("> "):
                    self.received[sender, name].append(int(line[2:]))
        await caller.close()

    async def run(self, each_second: int, seconds: float) -> dict[str, float]:
        """Run them all, and count."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for name in self.names:
                group.create_task(self.read(name))
            async with asyncio.TaskGroup() as senders:
                for name in self.names:
                    senders.create_task(self.send(name, len(self.names) / each_second, seconds))
            took = time.monotonic() - began
            self.is_over = True
        sent, received = sum(self.sent.values()), sum(map(len, self.received.values()))
        disordered = sum(numbers != list(range(len(numbers))) for numbers in self.received.values())
        lost = sum(self.sent[pair] - len(set(self.received[pair])) for pair in self.sent)
        return {
            "sent": sent,
            "received": received,
            "lost": lost,
            "disordered": disordered,
            "refused": self.refused,
            "slowest": self.slowest,
            "seconds": took,
        }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--agents"]:
        found = Agents({name: tuple(way) for name, way in json.load(sys.stdin).items()})
        print(json.dumps(asyncio.run(found.run(int(sys.argv[2]), float(sys.argv[3])))))
    else:
        given = [float(word) for word in sys.argv[1:]]
        wanted = [*given, *(AGENTS, EACH_SECOND, SECONDS)[len(given) :]]
        with contextlib.suppress(KeyboardInterrupt):
            sys.exit(asyncio.run(main(int(wanted[0]), int(wanted[1]), wanted[2])))
