"""Every error Shoal raises, and every exit code.

ShoalError
├── BadInput            the user's mistake: exit 2
│   ├── BadRepository   what we were pointed at cannot be worked on
│   └── UnknownName     a name that is not known, with the nearest one
├── Unavailable         what was asked for by name is not available on this host: exit 5
│   └── SandboxBroken   the sandbox failed its check from inside
├── GitFailed           git said no where it should not have
├── RunBroken           a run could not be finished; what came of its agents is in its report
├── SetupFailed         the commands that make a workspace ready failed
├── AgentError          an in-process agent could not finish its turn
│   ├── RateLimited, AuthenticationFailed, ContextTooLong, ModelFailed    the model's side
│   ├── MaxTurns, BudgetExceeded, AgentTimedOut, AgentCancelled           what it was allowed
│   └── ToolFailed, AgentCrashed                                          the program's side
├── PatternError        how calls that were run together ended
│   └── AllFailed, QuorumMissed, TimedOut, Refused, CallCancelled
└── Broken              the machine failed us (disk, kernel, a lock that never came free)
    └── Blocked         the same, for a reason that passes: a full disk, another program's lock
"""

import difflib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Self


class ExitCode(IntEnum):
    """Every exit code of `shoal`."""

    SUCCESS = 0
    FAILED = 1
    BAD_INPUT = 2
    BROKEN = 3
    NEEDS_A_PERSON = 4
    UNAVAILABLE = 5
    TIMED_OUT = 124
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    """What a shell shows for a program that a closed pipe ended."""


class ShoalError(Exception):
    """The base of all our errors; its text is a whole sentence for a person."""

    exit_code: int = ExitCode.BROKEN


FAULTS = (ShoalError, OSError)
"""What may go wrong with one session without ending the others; anything else that is raised is a bug in Shoal."""


class BadInput(ShoalError):
    """The user's input is invalid; nothing was changed."""

    exit_code = ExitCode.BAD_INPUT


class NoMessages(BadInput):
    """A message for an agent that cannot be spoken to while it works."""

    def __init__(self, session: str, adapter: str) -> None:
        super().__init__(
            f"{session} runs the adapter {adapter!r}, which takes no messages while it works; `claude`, `acp` and"
            " `python` do, and `scripted` with `receive`. To change its task, stop it and run it with another prompt"
        )


class BadRepository(BadInput):
    """The given folder is not a usable repository."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class UnknownName(BadInput):
    """An unknown name, reported with the nearest known one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names) or 'none'}"
        super().__init__(f"no {kind} named {name!r}{hint}")


class Unavailable(ShoalError):
    """Something the user asked for by name is not available on this host."""

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what} is not available on this host: {why}; {remedy}")
        self.what = what
        self.why = why
        self.remedy = remedy


class SandboxBroken(Unavailable):
    """The sandbox, checked from inside, is not the one that was requested."""

    def __init__(self, wall: str, why: str) -> None:
        super().__init__(f"the {wall} sandbox", why, "run `shoal doctor`, or name another `--sandbox`")


class SetupFailed(ShoalError):
    """The set-up commands of a workspace failed; no agent was started."""


class GitFailed(ShoalError):
    """A git command failed unexpectedly."""

    def __init__(self, args: Sequence[str], code: int, stderr: str) -> None:
        output = stderr.strip() or "no output"
        super().__init__(f"git {' '.join(args[:3])} failed with exit code {code}: {output[-600:]}")
        self.code = code
        self.stderr = stderr


class AgentError(ShoalError):
    """An agent could not finish its turn; what it did so far is in its history, and `continue_turn` goes on there."""

    exit_code = ExitCode.FAILED
    index: int | None = None
    """The index of the prompt, if there were several."""

    def __str__(self) -> str:
        """Return the message, prefixed with the prompt's index if there were several."""
        return super().__str__() if self.index is None else f"prompt {self.index}: {super().__str__()}"

    def of_prompt(self, index: int) -> Self:
        """Set the index of the prompt that failed."""
        self.index = index
        return self


class RateLimited(AgentError):
    """The model's provider limits the rate of requests."""

    def __init__(self, model: str, retry_after: float | None = None) -> None:
        wait = "wait" if retry_after is None else f"wait {retry_after:g} seconds"
        super().__init__(f"{model} rate-limited a request; {wait}, or run fewer prompts at once")
        self.retry_after = retry_after


class AuthenticationFailed(AgentError):
    """The model's provider does not accept the key."""

    def __init__(self, model: str, status: int | None = None) -> None:
        reply = "" if status is None else f" (status {status})"
        super().__init__(f"{model} refused the credentials{reply}; check the API key and that it may use this model")
        self.status = status


class ContextTooLong(AgentError):
    """The conversation is longer than the model can read."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"the conversation is too long for {model}; shorten it with `replace_messages`, or fork earlier"
        )


class ModelFailed(AgentError):
    """The model could not be reached, or gave no usable answer."""

    def __init__(self, model: str, why: str, *, status: int | None = None, is_passing: bool = False) -> None:
        remedy = "try again with `continue_turn`" if is_passing else "change the request or the model"
        super().__init__(f"{model} failed: {why}; {remedy}")
        self.status = status
        self.is_passing = is_passing


class MaxTurns(AgentError):
    """The model did not finish within its limit of turns."""

    def __init__(self, turns: int) -> None:
        super().__init__(f"no final answer after {turns} turns; raise `AgentLimits.turns`, or split the prompt")
        self.turns = turns


class BudgetExceeded(AgentError):
    """A budget is spent."""

    def __init__(self, what: str, spent: str) -> None:
        super().__init__(f"the {what} budget is spent ({spent}); raise it, or continue with a new agent")
        self.what = what


class AgentCancelled(AgentError):
    """The agent was asked to stop."""

    def __init__(self) -> None:
        super().__init__("the turn was cancelled; use `continue_turn` to resume it")


class AgentTimedOut(AgentError):
    """The turn exceeded its time limit."""

    def __init__(self, seconds: float | None = None) -> None:
        after = "" if seconds is None else f" after {seconds:g} seconds"
        super().__init__(f"the turn timed out{after}; allow more time, or use `continue_turn`")
        self.seconds = seconds


class ToolFailed(AgentError):
    """A tool raised an error not meant for the model, or never accepted the model's arguments."""

    def __init__(self, tool: str, why: str) -> None:
        super().__init__(
            f"tool {tool!r} failed: {why}; fix it, or raise `pydantic_ai.ModelRetry` to report it to the model"
        )
        self.tool = tool


class AgentCrashed(AgentError):
    """An unexpected error ended the turn; see its cause."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the turn crashed with {type(error).__name__}: {error}; see its cause for the traceback")


class PatternError(ShoalError):
    """Calls run together did not succeed as required; their errors are in `errors`."""

    exit_code = ExitCode.FAILED

    def __init__(self, sentence: str, errors: Sequence[Exception] = ()) -> None:
        super().__init__(sentence)
        self.errors = tuple(errors)
        if errors:  # so that a traceback shows all of them
            self.__cause__ = ExceptionGroup("errors of the calls", errors)


class AllFailed(PatternError):
    """No call of a race succeeded."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        super().__init__(f"none of {len(errors)} calls succeeded: {_join_errors(errors)}", errors)


class QuorumMissed(PatternError):
    """Too many calls failed."""

    def __init__(self, wanted: int, succeeded: int, errors: Sequence[Exception]) -> None:
        super().__init__(f"{wanted} calls had to succeed, but {succeeded} did: {_join_errors(errors)}", errors)
        self.wanted = wanted
        self.succeeded = succeeded


class TimedOut(PatternError, TimeoutError):
    """A call exceeded its time limit."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} of {seconds:g} s expired; running calls were cancelled")
        self.seconds = seconds


class Refused(PatternError):
    """A call returned a value that was not accepted."""

    def __init__(self, value: object) -> None:
        super().__init__(f"not accepted: {value!r:.300}")
        self.value = value


class CallCancelled(PatternError):
    """A required call was cancelled, by itself or from outside the pattern."""

    def __init__(self, index: int) -> None:
        super().__init__(f"call {index} was cancelled before it could succeed")
        self.index = index


def _join_errors(errors: Sequence[Exception]) -> str:
    return "; ".join(f"{type(error).__name__}: {error}"[:200] for error in errors[:5]) or "nothing failed"


class Broken(ShoalError):
    """The machine failed (disk, kernel, a lock that is never released)."""


class RunTaken(Broken):
    """Another process owns the run now: this one lost its lock, and may not go on with the run."""

    def __init__(self, run: str, pid: int, host: str) -> None:
        super().__init__(
            f"{run} was taken over by process {pid} on {host} while this process did not hold its lock;"
            f" nothing more is recorded here: `shoal attach {run}` shows the run"
        )
        self.owner = (run, pid, host)


class Blocked(Broken):
    """The machine does not let us go on for now; once the reason has passed, the same works again."""


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a task group, at any depth; siblings that fail together share a cause."""
    inner = errors.exceptions[0]
    return first_error(inner) if isinstance(inner, BaseExceptionGroup) else inner
