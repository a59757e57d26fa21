"""Gates as text: what is asked, how to answer, and what was answered."""

from collections.abc import Iterator

from shoal.cli.output import Paint, escape, program
from shoal.cli.render.columns import beginning, seconds
from shoal.model.events import GateAnswered, GateOpened
from shoal.model.gate import GateAnswer, GateVerdict
from shoal.store.run_state import GateState, RunState

MESSAGE = 400
INDENT = "  "


def waiting_lines(run: RunState, paint: Paint) -> Iterator[str]:
    """Describe the waiting gates of *run*, and the commands that answer them."""
    for step in run.waiting:
        if step.gate is not None:
            deadline = _in_time(step.gate.timeout, step.gate.on_timeout)
            question = f"{escape(step.step)} {quote_message(step.gate.message)}{deadline}"
            yield f"{paint('waiting for approval:', 'warn')} {question}"
            yield from (f"{INDENT}{line}" for line in _answers(run.run, step.step))


def waiting_document(run: RunState) -> list[dict[str, object]]:
    """Return the same as a document."""
    return [_gate(step.step, step.gate) for step in run.waiting if step.gate is not None]


def gate_opened_line(event: GateOpened, indent: str) -> str:
    """Say that a gate is waiting, and how to answer it."""
    question = f"{escape(event.step)} {quote_message(event.message)}{_in_time(event.timeout, event.on_timeout)}"
    head = f"waiting for approval: {question}; in another terminal:"
    return f"\n{indent}".join([head, *_answers(event.run, event.step)])


def gate_answered_line(event: GateAnswered) -> str:
    """Say how a gate was answered, and by whom."""
    answer = GateAnswer(verdict=event.answer, by=event.by, message=event.message)
    return f"{escape(event.step)} {one_line(answer.summary)}"


def how_to_answer(run: str, step: str) -> str:
    """Return the command that approves a gate."""
    return f"{program()} approve {escape(run)} {escape(step)}"


def _answers(run: str, step: str) -> tuple[str, str]:
    yes = how_to_answer(run, step)
    return yes, f"{yes} --reject"


def quote_message(message: str) -> str:
    """Quote a gate's message, which may come from an agent, on one line."""
    return f'"{one_line(message)}"'


def one_line(text: str, most: int = MESSAGE) -> str:
    """Put untrusted text on one line, escaped and shortened."""
    return beginning(" ".join(text.split()), most)


def _in_time(timeout: float | None, on_timeout: GateVerdict) -> str:
    return "" if timeout is None else f" ({on_timeout.done} without an answer in {seconds(timeout)})"


def _gate(step: str, gate: GateState) -> dict[str, object]:
    return {
        "step": step,
        "message": gate.message,
        "opened_at": gate.opened_at,
        "timeout_seconds": gate.timeout,
        "on_timeout": gate.on_timeout.value,
    }
