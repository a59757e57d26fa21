"""A plan for work that was named on the command line, without any file."""

from collections.abc import Sequence

from shoal.errors import BadInput
from shoal.model.task import AgentSpec, Plan, Step, Task

DEFAULT_AT_ONCE = 5


def adhoc(
    tasks: Sequence[str], agent: AgentSpec, *, max_concurrent: int = DEFAULT_AT_ONCE, timeout: float | None = None
) -> Plan:
    """Make one independent step per task, `task-1` and on; *timeout* is nearer than the agent's own.

    The sandbox and the like are the plan's defaults: lay others over them with `dataclasses.replace`.
    """
    if not tasks:
        raise BadInput("no task; give at least one `--task`")
    if max_concurrent < 1:
        raise BadInput(f"{max_concurrent} agents at once cannot work; give at least 1")
    steps = tuple(_step(number, prompt, agent, timeout) for number, prompt in enumerate(tasks, start=1))
    return Plan(name="adhoc", steps=steps, max_concurrent=max_concurrent)


def _step(number: int, prompt: str, agent: AgentSpec, timeout: float | None) -> Step:
    name = f"task-{number}"
    if not prompt.strip():
        raise BadInput(f"{name} is empty; say what the agent is to do")
    if "\0" in prompt:
        raise BadInput(f"{name} has a NUL in it; take it out")
    task = Task(
        name=name,
        prompt=prompt,
        agent=agent,
        network=agent.network,
        timeout=timeout or agent.timeout,
        env=agent.env,
        secrets=agent.secrets,
    )
    return Step(name=name, task=task, on_failure="best_effort")
