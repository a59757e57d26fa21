"""Independent fixes at once, each by a persona with its own parameters; then checks of the merged work."""

import asyncio

from shoal import AgentCoordinator

PERSONAS = {
    name: {"agent": {"adapter": "scripted", "script": [{"run": run}]}, "system_prompt": prompt}
    for name, prompt, run in (
        ("ux-designer", "You design.", 'grep -o "aria-[a-z-]*" "$SHOAL_INPUTS_DIR/params.json" > a11y.txt'),
        ("performance-engineer", "You make it fast.", 'grep -o "[0-9]*" "$SHOAL_INPUTS_DIR/params.json" > target.txt'),
        ("qa-engineer", "You test.", 'grep -c "spec" "$SHOAL_INPUTS_DIR/params.json" > tests.txt'),
    )
}


async def main() -> None:
    """Fix, merge for review, and verify the merged work."""
    async with AgentCoordinator(3, personas=PERSONAS) as coordinator:
        fixes = await coordinator.gather(
            [
                {
                    "agent": "ux-designer",
                    "task": "fix-a11y-violations",
                    "params": {"violations": ["aria-required-parent"]},
                },
                {"agent": "performance-engineer", "task": "optimize-chunk-sizes", "params": {"target": 500_000}},
                {
                    "agent": "qa-engineer",
                    "task": "fix-test-failures",
                    "params": {"tests": ["generation.spec.ts", "mock.spec.ts"]},
                },
            ]
        )
        merged = await coordinator.merge(fixes, strategy="review")
        for check in ("grep aria-required-parent a11y.txt", "grep 500000 target.txt", "grep 2 tests.txt"):
            verified = await coordinator.run_command(check, base=merged.branch)
            print(verified.exit_code, verified.output.strip())


asyncio.run(main())

# prints 0 aria-required-parent
# prints 0 500000
# prints 0 2
