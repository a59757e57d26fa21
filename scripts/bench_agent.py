"""1,000 prompts at width 100 on a scripted model with 20 ms replies: Shoal beside plain pydantic-ai under a semaphore.

Each is measured several times in its own processes, in turn; the best of each counts, because a busy machine slows
all others down. It fails if the processor time or the memory exceeds its bound: those do not depend on other load.
else is at work here.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time

import pydantic_ai

from shoal.agent import Agent, Ok, ScriptedModel

PROMPTS = int(os.environ.get("SHOAL_BENCH_PROMPTS", "1000"))
WIDTH = int(os.environ.get("SHOAL_BENCH_WIDTH", "100"))
ROUNDS = int(os.environ.get("SHOAL_BENCH_ROUNDS", "5"))
TIME_BOUND, MEMORY_BOUND = 1.15, 1.2


def main() -> None:
    """Measure both in turn and print one table; in a child process, measure one of them."""
    if len(sys.argv) > 1:
        print(json.dumps(asyncio.run(measured(sys.argv[1]))))
        return
    rounds = [{name: child(name) for name in ("plain", "shoal")} for _ in range(ROUNDS)]
    print(f"{PROMPTS} prompts, {WIDTH} at once, best of {ROUNDS} {'plain':>16} {'shoal':>8}   ratio   bound")
    over = []
    for what, bound in (("seconds", TIME_BOUND), ("cpu_seconds", TIME_BOUND), ("peak_mb", MEMORY_BOUND)):
        plain, ours = (min(one[name][what] for one in rounds) for name in ("plain", "shoal"))
        print(f"  {what:<46} {plain:8.2f} {ours:8.2f} {ours / plain:7.3f} {bound:7.2f}")
        over += [what] if ours / plain > bound and what != "seconds" else []
    if over:
        sys.exit(f"over its bound: {', '.join(over)}")


def child(name: str) -> dict[str, float]:
    """Measure one way in a fresh process."""
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


async def measured(name: str) -> dict[str, float]:
    """Run all prompts one way, keep every result, and return the cost."""
    model = ScriptedModel(lambda prompt, _: f"echo {prompt}", delay=0.02)
    prompts = [f"prompt {number}" for number in range(PROMPTS)]
    way = {"plain": plain, "shoal": shoal}[name]
    await way(model, prompts[:WIDTH])  # one-time costs are not part of the comparison
    began, cpu = time.perf_counter(), time.process_time()
    texts, _kept = await way(model, prompts)
    took, busy = time.perf_counter() - began, time.process_time() - cpu
    assert texts == [f"echo {prompt}" for prompt in prompts]
    return {"seconds": took, "cpu_seconds": busy, "peak_mb": peak_mb()}


async def plain(model: ScriptedModel, prompts: list[str]) -> tuple[list[str], object]:
    """As a user of pydantic-ai would write it."""
    agent = pydantic_ai.Agent(model, instructions="Be short.")
    room = asyncio.Semaphore(WIDTH)

    async def one(prompt: str) -> pydantic_ai.AgentRunResult[str]:
        async with room:
            return await agent.run(prompt)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(prompt)) for prompt in prompts]
    results = [task.result() for task in tasks]
    return [result.output for result in results], results


async def shoal(model: ScriptedModel, prompts: list[str]) -> tuple[list[str], object]:
    """The same by `run_parallel_prompts`."""
    results = await Agent(model, system_prompt="Be short.").run_parallel_prompts(prompts, WIDTH)
    return [result.value.text for result in results if isinstance(result, Ok)], results


def peak_mb() -> float:
    """Return the peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
