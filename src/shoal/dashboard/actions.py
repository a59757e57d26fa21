"""What a person does on the page: each action runs the command that they would type."""

from collections.abc import Callable, Mapping

from shoal.errors import BadInput

MAX_WORD_CHARS = 20_000

Fields = Mapping[str, object]


def word(fields: Fields, name: str) -> str:
    """Return a text of a request, or an empty one; raise `BadInput` if it is not text or is too long."""
    value = fields.get(name, "")
    if not isinstance(value, str) or len(value) > MAX_WORD_CHARS or "\0" in value:
        raise BadInput(f"{name!r} must be a text of at most {MAX_WORD_CHARS} characters")
    return value


def words(fields: Fields, name: str) -> list[str]:
    """Return a list of texts of a request."""
    values = fields.get(name, [])
    if not isinstance(values, list) or len(values) > 1000:
        raise BadInput(f"{name!r} must be a list of texts")
    return [word({name: value}, name) for value in values]


def is_set(fields: Fields, name: str) -> bool:
    """Return whether a request asks for an option."""
    return fields.get(name) is True


def _require(fields: Fields, name: str) -> str:
    value = word(fields, name)
    if not value:
        raise BadInput(f"{name!r} is missing")
    return value


def _stop(fields: Fields) -> list[str]:
    return ["stop", *(["--now"] if is_set(fields, "now") else []), "--json", "--", _require(fields, "target")]


def _approve(fields: Fields) -> list[str]:
    verdict = ["--reject"] if is_set(fields, "reject") else []
    message = word(fields, "message")
    comment = [f"--message={message}"] if message else []
    return ["approve", *verdict, *comment, "--json", "--", _require(fields, "run"), _require(fields, "step")]


def _send(fields: Fields) -> list[str]:
    return ["send", "--json", "--", _require(fields, "session"), _require(fields, "text")]


def _pause(fields: Fields) -> list[str]:
    return ["pause", *(["--freeze"] if is_set(fields, "freeze") else []), "--json", "--", _require(fields, "run")]


def _continue(fields: Fields) -> list[str]:
    return ["continue", "--json", "--", _require(fields, "run")]


def _resume(fields: Fields) -> list[str]:
    return ["resume", "--detach", "--json", "--", _require(fields, "run")]


def _retry(fields: Fields) -> list[str]:
    target = word(fields, "target")
    return ["retry", "--detach", "--json", "--", _require(fields, "run"), *([target] if target else [])]


def _merge(fields: Fields) -> list[str]:
    into = word(fields, "into")
    options = [f"--into={into}", "--yes"] if into else []
    if strategy := word(fields, "strategy"):
        options.append(f"--strategy={strategy}")
    if verify := word(fields, "verify"):
        options.append(f"--verify={verify}")
    if is_set(fields, "allow_executable_config"):
        options.append("--allow-executable-config")
    return ["merge", *options, "--json", "--", _require(fields, "run"), *words(fields, "sessions")]


def _undo(fields: Fields) -> list[str]:
    return ["merge", "--undo", "--json", "--", _require(fields, "run"), *words(fields, "sessions")]


def _run(fields: Fields) -> list[str]:
    """Start tasks, or a pipeline of a file in the repository."""
    options = [f"--{name}={value}" for name in ("agent", "command", "base") if (value := word(fields, name))]
    options += [f"--input={value}" for value in words(fields, "inputs")]
    tasks = [task for task in words(fields, "tasks") if task.strip()]
    pipeline = word(fields, "pipeline")
    if bool(tasks) == bool(pipeline):
        raise BadInput("give tasks, or the name or file of a pipeline")
    if tasks:
        return ["run", "--detach", "--json", *options, *(f"--task={task}" for task in tasks)]
    return ["run", "--detach", "--json", *options, "--", pipeline]


ACTIONS: Mapping[str, Callable[[Fields], list[str]]] = {
    "stop": _stop,
    "approve": _approve,
    "send": _send,
    "pause": _pause,
    "continue": _continue,
    "resume": _resume,
    "retry": _retry,
    "merge": _merge,
    "undo": _undo,
    "run": _run,
}


def command_words(fields: Fields) -> list[str]:
    """Return the words of the command that a request means; raise `BadInput` if it means none."""
    name = word(fields, "action")
    if name not in ACTIONS:
        raise BadInput(f"no action named {name[:40]!r}; known: {', '.join(ACTIONS)}")
    return ACTIONS[name](fields)
