"""A gate: a question to a person, whose answer a run needs to continue."""

from dataclasses import dataclass
from enum import StrEnum

from shoal.model.status import Status


class GateVerdict(StrEnum):
    """A person's answer."""

    APPROVE = "approve"
    REJECT = "reject"

    @property
    def done(self) -> str:
        """Return it as a participle."""
        return "approved" if self is GateVerdict.APPROVE else "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A question; without an answer within *timeout* seconds, *on_timeout* is the answer."""

    message: str
    timeout: float | None = None
    on_timeout: GateVerdict = GateVerdict.REJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAnswer:
    """An answer, its author and its text; without an author if the time was over."""

    verdict: GateVerdict
    by: str = ""
    message: str = ""

    @property
    def is_approved(self) -> bool:
        """Return whether the run continues."""
        return self.verdict is GateVerdict.APPROVE

    @property
    def status(self) -> Status:
        """The resulting status of the step."""
        if self.is_approved:
            return Status.SUCCEEDED
        return Status.FAILED if self.by else Status.TIMED_OUT

    @property
    def error(self) -> str | None:
        """Why the run does not continue, if it does not."""
        return None if self.is_approved else self.summary

    @property
    def summary(self) -> str:
        """Describe it in a sentence."""
        who = f"by {self.by}" if self.by else "because the gate timed out"
        return f"{self.verdict.done} {who}" + (f": {self.message}" if self.message else "")
