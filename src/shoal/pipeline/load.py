"""Load a file or text as a document: check shape and meaning, and report all problems at once."""

import itertools
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BadInput
from shoal.pipeline.check import meaning_problems
from shoal.pipeline.keys.contracts import Schemas
from shoal.pipeline.keys.script import canonical, script
from shoal.pipeline.problems import BadDocument, Position, Problem
from shoal.pipeline.shape import FileShape
from shoal.pipeline.tree import Fields, Node, entries, find, plain, text
from shoal.pipeline.validation_errors import shape_problems
from shoal.pipeline.yaml_reader import MAX_BYTES, compose

MAX_PROMPT_BYTES = 256 * 1024

Reader = Callable[[str, int], bytes]
"""Read a file that the document names, of at most so many bytes; raise `BadInput` with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A checked file: its shape, its tree, and the texts of the files that it names.

    *system_prompts* are by the name of their persona, *scripts* (canonical JSON) by the name of their agent, *schemas*
    by the name of their file.
    """

    name: str
    tree: Fields
    shape: FileShape
    system_prompts: Mapping[str, str]
    scripts: Mapping[str, str]
    schemas: Mapping[str, str]


def load(path: Path) -> Document:
    """Load the file at *path* and those that it names; raise `BadDocument` with all problems."""
    name = str(path)
    try:
        content = _read(path, MAX_BYTES)
    except BadInput as error:
        raise BadDocument([Problem(name, None, str(error))]) from None
    return parse(_decode(content, name), name, read=beside(path))


def parse(content: str, name: str, *, read: Reader | None = None) -> Document:
    """Check a document; *name* is for messages, *read* for the files that it names."""
    composed = compose(content, name)
    tree = composed.tree
    if not isinstance(tree, Fields):
        wrong = Problem(name, tree.at, "the top level must be a mapping; start with `steps:`")
        raise BadDocument([*composed.problems, wrong])
    beside = _ReferencedFiles(tree, name, read or _nowhere)
    system_prompts, scripts = beside.system_prompts(), beside.scripts()
    schemas = Schemas(tree, name, read or _nowhere)
    meant = meaning_problems(tree, name, system_prompts)
    checks = (shape_problems(FileShape, tree, name), meant, beside.problems, schemas.problems)
    if problems := [*composed.problems, *itertools.chain(*checks)]:
        raise BadDocument(problems)
    shape = FileShape.model_validate(plain(tree))
    return Document(
        name=name,
        tree=tree,
        shape=shape,
        system_prompts=_inline_prompts(shape) | system_prompts,
        scripts=_inline_scripts(shape) | scripts,
        schemas=schemas.found,
    )


class _ReferencedFiles:
    """The files that a document names, and their problems."""

    def __init__(self, tree: Node, name: str, read: Reader) -> None:
        self.tree = tree
        self.name = name
        self.read = read
        self.problems: list[Problem] = []

    def system_prompts(self) -> dict[str, str]:
        """Read the file of each persona that names one."""
        return self._each("personas", "system_prompt_file", self._system_prompt)

    def scripts(self) -> dict[str, str]:
        """Read the script of each agent that names one."""
        return self._each("agents", "script_file", self._script)

    def _each(self, section: str, field: str, take: Callable[[str, str], str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for label, entry in entries(find(self.tree, section)).items():
            node = find(entry.value, field)
            file = text(node)
            if node is None or file is None:
                continue
            try:
                found[label] = take(file, str(Path(self.name).parent / file))
            except BadDocument as error:
                self.problems += error.problems
            except BadInput as error:
                self.problems.append(Problem(self.name, node.at, f"`{field}`: {error}"))
        return found

    def _system_prompt(self, file: str, name: str) -> str:
        words = _decode(self.read(file, MAX_PROMPT_BYTES), name)
        if "\0" in words:
            raise BadDocument([Problem(name, None, "the text contains a NUL byte; remove it")])
        return words

    def _script(self, file: str, name: str) -> str:
        return script(_decode(self.read(file, MAX_BYTES), name), name)


def _inline_prompts(shape: FileShape) -> dict[str, str]:
    return {name: persona.system_prompt or "" for name, persona in shape.personas.items()}


def _inline_scripts(shape: FileShape) -> dict[str, str]:
    return {name: canonical(agent.script) for name, agent in shape.agents.items() if agent.script is not None}


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, len(before.rpartition(b"\n")[2].decode()) + 1
        raise BadDocument([Problem(name, Position(line, column), "not UTF-8; save it as UTF-8")]) from None


def beside(path: Path) -> Reader:
    """Return a reader of files by their paths relative to the folder of *path*."""
    return lambda file, most: _read(path.parent / file, most)


def _nowhere(file: str, most: int) -> bytes:
    raise BadInput(f"{file!r} cannot be read, for this text is in no file; write it inline")


def _read(path: Path, most: int) -> bytes:
    """Read a regular file; a folder, a device or a fifo is refused."""
    try:
        with open(path, "rb", opener=_unwaiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadInput(f"{str(path)!r} is not a plain file; name one")
            content = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {str(path)!r} ({_reason(error)}); check the path") from None
    if len(content) > most:
        raise BadInput(f"{str(path)!r} is larger than {most // 1024} KiB; make it smaller")
    return content


def _unwaiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a fifo without a writer would block forever


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or "no reason given") if isinstance(error, OSError) else str(error)
