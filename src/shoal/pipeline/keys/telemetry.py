"""The key `telemetry`: OpenTelemetry on or off, or a mapping."""

from typing import Annotated

from pydantic import BeforeValidator

from shoal.model.plan import Telemetry
from shoal.pipeline.fields import Shape


class TelemetryShape(Shape):
    """What to send to an OpenTelemetry collector; needs the extra `otel`."""

    endpoint: str | None = None
    """The collector's OTLP/HTTP address, like `http://localhost:4318`; default: that of the `OTEL_*` variables."""
    prompts: bool = False
    """Also send the beginnings of prompts, and what tools were given and returned."""

    on: bool = True
    """Whether to send anything; without this key, the `OTEL_*` variables decide."""

    def to_telemetry(self) -> Telemetry:
        """Build the value."""
        return Telemetry(is_on=self.on, endpoint=self.endpoint or "", has_prompts=self.prompts)


def _as_mapping(value: object) -> object:
    return {"on": value} if isinstance(value, bool) else value


TelemetryField = Annotated[
    TelemetryShape | None, BeforeValidator(_as_mapping, json_schema_input_type=bool | TelemetryShape)
]
