"""A real Claude Code in a sandbox starts agents, asks one a question, and builds on the work of another."""

from pathlib import Path

from shoal.testing.model import ModelServer, Request, Say, Turn, Use
from tests.clients.real import CLAUDE, Scene, workers
from tests.clients.test_mcp import find_tool
from tests.conftest import git

PLAN = "Plan the wells."
TASKS = ("echo wood > wood.txt", "echo stone > stone.txt", "Wait for my riddle.")
STEPS = ("spawn", "spawn", "spawn", "ask", "wait", "diff", "merge", "Bash")


class Planner:
    """What the models of the planner and of its children do."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}

    def __call__(self, request: Request) -> Turn | None:
        texts = "\n".join(message.text for message in request.conversation.messages)
        if not request.tools:
            return Say("Wells")
        if PLAN in texts and "Message plan" not in texts:
            return self._plan(request)
        return self._work(request, texts)

    def _work(self, request: Request, texts: str) -> Turn:
        results = request.results
        if "ToolSearch" in request.tools:
            if not results:
                return Use("ToolSearch", {"query": "select:mcp__shoal__inbox,mcp__shoal__reply"})
            results = results[1:]
        if TASKS[2] not in texts:
            task = next(task for task in TASKS if task in texts)
            return Say("done") if results else Use("Bash", {"command": task, "description": "work"})
        if not results:
            return Use(find_tool(request, "inbox"), {"wait": 30})
        if len(results) == 1:
            return Use(find_tool(request, "reply"), {"message": "plan:1", "text": "forty fathoms"})
        return Say("answered")

    def _plan(self, request: Request) -> Turn:
        results = request.results
        if "ToolSearch" in request.tools:
            if not results:
                tools = ",".join(f"mcp__shoal__{step}" for step in dict.fromkeys(STEPS[:-1]))
                return Use("ToolSearch", {"query": f"select:{tools}"})
            results = results[1:]
        for name, result in zip(STEPS, results, strict=False):
            self.said[name] = result
        if len(results) >= len(STEPS):
            return Say("The wells are planned.")
        step = STEPS[len(results)]
        merge = self.said.get("merge", "").partition("    ")[2].partition("\n")[0]
        arguments: dict[str, dict[str, object]] = {
            "spawn": {"task": TASKS[len(results) % 3]},
            "ask": {"to": "plan_3", "question": "How deep?", "timeout": 60},
            "wait": {},
            "diff": {"child": "plan_1"},
            "merge": {"child": "plan_1"},
            "Bash": {"command": f"{merge} && cat wood.txt > built.txt", "description": "merge"},
        }
        return Use("Bash" if step == "Bash" else find_tool(request, step), arguments[step])


def test_a_planner_starts_three_asks_one_and_builds_on_another(repo: Path) -> None:
    planner = Planner()
    with ModelServer(planner) as model:
        here = Scene(CLAUDE, repo, model)
        here.write([{"name": "plan", "prompt": PLAN}], talk={"spawn": 3, "message": True})
        report = here.run(timeout=170)

    by_step = workers(report)
    assert by_step["plan"]["status"] == "succeeded", (by_step["plan"], planner.said)
    assert "> forty fathoms" in planner.said["ask"], planner.said
    assert "+wood" in planner.said["diff"]
    assert git(here.repo, "show", f"{by_step['plan']['branch']}:built.txt") == "wood"
    assert [by_step[f"plan_{number}"]["parent"] for number in (1, 2, 3)] == [by_step["plan"]["session"]] * 3
