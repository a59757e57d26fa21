"""One agent, many conversations: each prompt runs on a fork of its own, and its failure is its own.

The model is a stand-in that answers by a function; give "anthropic:claude-sonnet-5" for a real one. It needs an extra:
`pip install 'shoal[agent]'`.
"""

import asyncio

from shoal.agent import Agent, Err, Ok, ScriptedModel


def answer(prompt: str, step: int) -> str:
    """Say something to each prompt, but not to all of them."""
    if "B" in prompt:
        raise ValueError("there is no task B")
    return f"did {prompt}"


async def main() -> None:
    """Talk, fork, and ask three at once."""
    agent = Agent(ScriptedModel(answer))
    await agent.prompt("hello")

    twin = agent.fork()  # it knows what was said so far, and from now on goes its own way
    await twin.prompt("are you the twin")
    print(len(agent.messages), len(twin.messages))

    for outcome in await agent.run_parallel_prompts(["task A", "task B", "task C"], max_parallel_runs=3):
        match outcome:
            case Ok(reply):
                print("ok:", reply.text)
            case Err(error):
                print("failed:", error.__cause__)


asyncio.run(main())

# prints 2 4
# prints ok: did task A
# prints failed: there is no task B
# prints ok: did task C
