"""What pydantic-ai and the providers raise, as errors of ours: by type, status and code, never by text."""

from pydantic import PydanticUserError
from pydantic_ai import exceptions as theirs

from shoal.errors import (
    AgentCancelled,
    AgentCrashed,
    AgentError,
    AgentTimedOut,
    AuthenticationFailed,
    BadInput,
    BudgetExceeded,
    ContextTooLong,
    ModelFailed,
    RateLimited,
    ShoalError,
)

PASSING = (
    theirs.ModelUnavailableError,
    theirs.ModelServerError,
    theirs.ModelConnectionError,
)


def typed(error: Exception, model: str) -> ShoalError:
    """Say what *error* means for a turn with *model*."""
    match error:
        case ShoalError():
            return error
        case theirs.RunTimedOut() | theirs.ModelTimeoutError():
            return AgentTimedOut()
        case theirs.ModelRequestTimeout():
            return AgentTimedOut(error.timeout)
        case theirs.RunCancelled():
            return AgentCancelled()
        case theirs.ModelAPIError():
            return _of_the_model(error)
        case theirs.UnexpectedModelBehavior():
            return ModelFailed(model, error.message, is_passing=True)
        case theirs.FallbackExceptionGroup():
            return typed(error.exceptions[-1], model)
        case theirs.UserError() | PydanticUserError():
            return BadInput(error.message)
        case theirs.AgentRunError():
            return ModelFailed(model, error.message)
        case _:
            return AgentCrashed(error)


def _of_the_model(error: theirs.ModelAPIError) -> AgentError:
    status = error.status_code if isinstance(error, theirs.ModelHTTPError) else None
    match error:
        case theirs.ModelRateLimitError():
            return RateLimited(error.model_name, error.retry_after)
        case theirs.ModelQuotaExceededError():
            return BudgetExceeded("the account", f"{error.model_name} says: {_said(error)}")
        case theirs.ModelAuthenticationError():
            return AuthenticationFailed(error.model_name, status)
        case theirs.ModelContextWindowExceededError():
            return ContextTooLong(error.model_name)
        case _:
            return ModelFailed(
                error.model_name, _said(error), status=status, is_passing=isinstance(error, PASSING) or status == 408
            )


def _said(error: theirs.ModelAPIError) -> str:
    return error.provider_error_code or error.provider_error_type or error.message
