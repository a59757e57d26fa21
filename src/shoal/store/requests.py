"""Requests of other processes to a run: small files in a folder of its own, which only the run's owner removes.

A request exists completely or not at all, and stays until its outcome is recorded: a crash of either side at any
moment neither loses nor repeats it.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import pwd
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import get_type_hints

from shoal.errors import BadInput, Broken
from shoal.model.gate import GateVerdict
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths

MAX_BYTES = 256 * 1024  # more than the longest message takes when each of its characters is escaped
MAX_MESSAGE_CHARS = 2000
MAX_SENT_CHARS = 20_000
MAX_NAME_CHARS = 100
MAX_REQUESTS = 1000
MAX_STRANGE = 100

_FILE = re.compile(r"\d{20}-[0-9a-f]{16}\.json")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class RequestKind(StrEnum):
    """The kinds of requests to a run."""

    ANSWER = "answer"
    STOP = "stop"
    PAUSE = "pause"
    CONTINUE = "continue"
    SET = "set"
    SEND = "send"
    SNAPSHOT = "snapshot"

    @property
    def max_message_chars(self) -> int:
        """The maximum length of its message."""
        return MAX_SENT_CHARS if self is RequestKind.SEND else MAX_MESSAGE_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """A request to a run, for instance an answer to a gate."""

    kind: str
    run: str
    step: str = ""
    about: int = 0
    """The number of the event that it is about: an answer is for that question, and for no later one."""
    answer: str = ""
    message: str = ""
    session: str = ""
    """The only session that is meant; empty for the whole run."""
    is_now: bool = False
    is_frozen: bool = False
    """Whether a pause also freezes running agents."""
    value: int = 0
    """How many agents may run at once, if that is requested."""
    by: str = ""
    at: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def file(self) -> str:
        """Name its file; names sort by time."""
        return f"{int(self.at * 1e6):020d}-{self.id}.json"


@dataclass(frozen=True, slots=True)
class PostedRequests:
    """The content of a run's folder: requests in order of arrival, and why other files are not requests."""

    requests: tuple[ControlRequest, ...]
    strange: Mapping[str, str]


def user_name() -> str:
    """Return the name of this process's user, for the record."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def requester(request: ControlRequest) -> str:
    """Name the person who left *request*, as far as the request says."""
    return request.by.strip()[:MAX_NAME_CHARS] or "somebody"


def make_folder(paths: StatePaths, run: str) -> None:
    """Create the folder of *run*, for this user only; raise `OSError` if that fails, or if it is a link."""
    paths.requests.mkdir(mode=0o700, exist_ok=True)
    paths.requests_of(run).mkdir(mode=0o700, exist_ok=True)
    with _open_folder(paths, run):
        return


def post(paths: StatePaths, request: ControlRequest) -> None:
    """Leave *request* for its run; raise `BadInput` if it is too long, or the run takes no requests."""
    most = RequestKind(request.kind).max_message_chars
    if len(request.message) > most:
        raise BadInput(f"the message has {len(request.message)} characters, but at most {most} are allowed; shorten it")
    content = json.dumps(dataclasses.asdict(request)).encode()
    try:
        with _open_folder(paths, request.run) as folder:
            _write(folder, request.file, content)
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{request.run} takes no requests: it has ended or has not started") from None
    except OSError as error:
        raise Broken(f"the request could not be left for {request.run}: {error.strerror}") from error


def read_posted(paths: StatePaths, run: str) -> PostedRequests:
    """Read what was left for *run*; nothing is changed, and only an `OSError` about the folder is raised."""
    requests: list[ControlRequest] = []
    strange: dict[str, str] = {}
    with _open_folder(paths, run) as folder:
        # A name that starts with a dot is a file that is still being written, or was never completed.
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
        ours = [name for name in names if _FILE.fullmatch(name)]
        others = [name for name in names if not _FILE.fullmatch(name)]
        strange |= dict.fromkeys(others[:MAX_STRANGE], "its name is not one of ours")
        for name in ours[:MAX_REQUESTS]:
            match _read(folder, name, run):
                case ControlRequest() as request:
                    requests.append(request)
                case str(why):
                    strange[name] = why
    return PostedRequests(tuple(requests), strange)


def withdraw(paths: StatePaths, *requests: ControlRequest) -> None:
    """Remove *requests* that still exist."""
    for request in requests:
        with contextlib.suppress(FileNotFoundError), _open_folder(paths, request.run) as folder:
            os.unlink(request.file, dir_fd=folder)


def forget(paths: StatePaths, run: str) -> None:
    """Remove the folder of a *run* that has ended, with unanswered requests; folders in it stay."""
    with contextlib.suppress(OSError):
        with _open_folder(paths, run) as folder:
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
        paths.requests_of(run).rmdir()


def forget_dead(paths: StatePaths) -> None:
    """Remove what was left for runs whose owner was killed: nobody will ever take it."""
    if paths.requests.is_dir():
        for name in os.listdir(paths.requests):
            if not is_locked(paths.run_lock(name)):
                forget(paths, name)


@contextlib.contextmanager
def _open_folder(paths: StatePaths, run: str) -> Iterator[int]:
    """Open the folder of *run* without following links."""
    name = paths.requests_of(run).name
    above = os.open(paths.requests, _FOLDER)
    try:
        folder = os.open(name, _FOLDER, dir_fd=above)
    finally:
        os.close(above)
    try:
        yield folder
    finally:
        os.close(folder)


def _write(folder: int, name: str, content: bytes) -> None:
    draft = f".{name}"
    try:
        with os.fdopen(os.open(draft, _WRITE, 0o600, dir_fd=folder), "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # root may answer for the owner, whose folder keeps others out
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    os.fsync(folder)


def _read(folder: int, name: str, run: str) -> ControlRequest | str:
    """Read one file, or say why it is not a request."""
    try:
        content = _content(folder, name)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if isinstance(content, str):
        return content
    try:
        request = _make_request(json.loads(content))
        is_whole = (request.file, request.run) == (name, run)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        return "it cannot be parsed as a request"
    return _refusal(request) or request if is_whole else "it does not match its name or folder"


def _content(folder: int, name: str) -> bytes | str:
    with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_uid != os.geteuid():
            return "it belongs to another user"
        content = file.read(MAX_BYTES + 1) if stat.S_ISREG(found.st_mode) else None
    if content is None or len(content) > MAX_BYTES:
        return f"it is not a regular file of at most {MAX_BYTES} bytes"
    return content


def _make_request(value: object) -> ControlRequest:
    """Make a request of JSON; fields of a newer Shoal are dropped, and required ones must be present."""
    if not isinstance(value, dict) or "id" not in value or "at" not in value:
        raise TypeError("no request")
    fields = {name: value[name] for name in get_type_hints(ControlRequest) if name in value}
    for name, kind in get_type_hints(ControlRequest).items():
        if name in fields and type(fields[name]) is not kind:
            raise TypeError(name)
    return ControlRequest(**fields)


def _refusal(request: ControlRequest) -> str | None:
    if request.kind not in tuple(RequestKind):
        return f"it asks for {request.kind[:40]!r}, which this Shoal does not support"
    if request.kind == RequestKind.ANSWER and request.answer not in tuple(GateVerdict):
        return f"it answers {request.answer[:40]!r}, which is neither approve nor reject"
    if request.kind == RequestKind.SET and request.value < 1:
        return f"it asks for {request.value} agents at once; at least 1 is possible"
    if request.kind == RequestKind.SEND and not (request.session and request.message.strip()):
        return "it is a message without text or recipient"
    if request.kind == RequestKind.SNAPSHOT and not request.session:
        return "it asks for the files of a session, but names none"
    most = RequestKind(request.kind).max_message_chars
    return None if len(request.message) <= most else f"its message has more than {most} characters"


POLL_SECONDS = 0.2
SETTLED_SECONDS = 2.0  # longer than a clock tick of any file system

Fits = Callable[[ControlRequest], bool]
OnStrange = Callable[[str, str], None]
"""Called with the name of a file that is not a request, and why."""


class RequestDoor:
    """Where the owner of a run receives requests: it polls only while somebody waits for one."""

    def __init__(self, paths: StatePaths, run: str, on_strange: OnStrange = lambda name, why: None) -> None:
        self._paths = paths
        self._run = run
        self._on_strange = on_strange
        self._reported: set[str] = set()
        self._mail: tuple[ControlRequest, ...] = ()
        self._seen: int | None = None
        self._looked = float("-inf")

    def open(self) -> None:
        """Create the folder, without which nobody can leave a request, before anyone is told about it."""
        try:
            make_folder(self._paths, self._run)
        except OSError as error:
            raise Broken(f"{self._paths.requests_of(self._run)} cannot be created: {error.strerror}") from error

    def close(self) -> None:
        """Take no more requests, and remove those that nobody waits for."""
        forget(self._paths, self._run)

    async def first(self, fits: Fits) -> ControlRequest:
        """Wait for a request that *fits*; it stays in its file until it is settled."""
        while (found := self._find(fits)) is None:  # noqa: ASYNC110 - we wait for another process
            await asyncio.sleep(POLL_SECONDS)
        return found

    def now(self, fits: Fits) -> ControlRequest | None:
        """Look for a request that *fits* right now: it may have arrived just before."""
        self._looked = float("-inf")
        return self._find(fits)

    def settle(self, fits: Fits) -> None:
        """Remove all requests that *fit*, once the outcome of the first is recorded."""
        settled = [request for request in self._mail if fits(request)]
        self._mail = tuple(request for request in self._mail if not fits(request))
        with contextlib.suppress(OSError):  # a remaining file answers no question
            withdraw(self._paths, *settled)

    def _find(self, fits: Fits) -> ControlRequest | None:
        now = time.monotonic()
        if now - self._looked >= POLL_SECONDS / 2:  # many may wait at once
            self._looked = now
            self._look()
        return next((request for request in self._mail if fits(request)), None)

    def _look(self) -> None:
        """Read the folder if it has changed; what cannot be read now is read next time."""
        try:
            changed = self._paths.requests_of(self._run).lstat().st_mtime_ns
            if changed == self._seen:
                return
            mail = read_posted(self._paths, self._run)
        except FileNotFoundError:
            with contextlib.suppress(Broken):  # the repository was renamed; its ledger says so, and waits
                self.open()
            return
        except OSError:
            return
        # Two changes within one tick of the clock look like one: the folder's time counts only once it has settled.
        self._seen = changed if time.time() - changed / 1e9 > SETTLED_SECONDS else None
        self._mail = mail.requests
        for name in mail.strange.keys() - self._reported:
            self._reported.add(name)
            self._on_strange(name, mail.strange[name])


def answers(step: str, about: int) -> Fits:
    """Match answers to the question of *step* that the event *about* asked."""
    return lambda request: (request.kind, request.step, request.about) == (RequestKind.ANSWER, step, about)


def is_control(request: ControlRequest) -> bool:
    """Return whether *request* is about the run itself, not an answer."""
    return request.kind != RequestKind.ANSWER
