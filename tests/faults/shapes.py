"""Runs of twenty tasks in every shape of a run."""

import json
from collections.abc import Mapping

from tests.faults.scene import Scene

PIPELINE = "steps:\n" + "\n".join(
    f"  - {{name: s{number}, agent: work, prompt: 'true', needs: [{'' if number < 4 else f's{number - 4}'}]}}"
    for number in range(20)
)
ITEMS = [{"id": f"i{number}", "needs": [] if number < 3 else [f"i{number - 3}"]} for number in range(19)]
MATRIX = f"""\
steps:
  - name: plan
    agent: work
    prompt: "echo '{json.dumps(ITEMS).replace('"', chr(92) + '"')}' > items.json"
    output_artifacts: [{{name: items, path: items.json}}]
  - name: cells
    agent: work
    needs: [plan]
    prompt: "echo {{{{ task.id }}}} > {{{{ task.id }}}}.txt"
    strategy: {{items_source: plan/items.json, item_id_key: id, dependency_key: needs}}
"""
LOOP = "steps:\n" + "\n".join(
    f"""  - name: loop{number}
    agent: work
    prompt: "echo x > l{number}-{{{{ loop.round }}}}.txt"
    loop: {{until: "loop.round == 5", max: 6}}"""
    for number in range(4)
)
SELECT = "steps:\n" + "\n".join(
    f"""  - name: pick{number}
    agent: work
    prompt: "seq $((99 * SHOAL_WORKER_INDEX)) > p{number}-$SHOAL_WORKER_INDEX.txt"
    concurrency: 4
    select: {{by: diff_size}}
    needs: [{"" if number == 0 else f"pick{number - 1}"}]"""
    for number in range(5)
)
SUB_PIPELINE = """\
pipelines:
  - name: main
    steps:
      - {name: a, pipeline: inner}
      - {name: b, pipeline: inner}
      - {name: c, pipeline: inner, needs: [a]}
      - {name: d, pipeline: inner, needs: [a, b]}
  - name: inner
    steps:
      - {name: one, agent: work, prompt: "true"}
      - {name: many, agent: work, prompt: "true", needs: [one], concurrency: 3, on_failure: best_effort}
      - {name: last, agent: work, prompt: "true", needs: [many]}
"""
STEPS: Mapping[str, str] = {
    "ad-hoc": "",
    "pipeline": PIPELINE,
    "matrix": MATRIX,
    "loop": LOOP,
    "select": SELECT,
    "sub-pipeline": SUB_PIPELINE,
}


def words_of(shape: str) -> tuple[str, ...]:
    """Give the command that starts a run of *shape*."""
    match shape:
        case "ad-hoc":
            tasks = [word for _ in range(20) for word in ("--task", "true")]
            return ("run", *tasks, "--agent", "work", "--sandbox", "none", "--network", "host", "-j", "4", "--events")
        case "sub-pipeline":
            return ("run", "p.yaml", "main", "--events")
        case _:
            return ("run", "p.yaml", "--events")


def shape_scene(scene: Scene, shape: str) -> Scene:
    """Let *scene* start a run of *shape*; ad-hoc work takes its agents from the repository's own file."""
    scene.words = words_of(shape)
    if shape == "ad-hoc":
        (scene.repo / "p.yaml").rename(scene.repo / "shoal.yaml")
    return scene
