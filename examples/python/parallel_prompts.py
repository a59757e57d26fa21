"""One agent, many conversations: each prompt runs on its own fork, and a failure affects only that prompt.

The model is a stand-in that calls a function; use "anthropic:claude-sonnet-5" for a real one. Install the extra:
`pip install 'shoal[agent]'`.
"""

import asyncio

from shoal.agent import Agent, Err, Ok, ScriptedModel


def answer(prompt: str, step: int) -> str:
    """Answer every prompt except one."""
    if "B" in prompt:
        raise ValueError("there is no task B")
    return f"did {prompt}"


async def main() -> None:
    """Prompt an agent, fork it, and run three prompts at once."""
    agent = Agent(ScriptedModel(answer))
    await agent.prompt("hello")

    twin = agent.fork()  # starts with the same conversation and continues separately
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
