"""What was spent on models, as people read it."""

from shoal.model.usage import Usage


def spent(usage: Usage) -> str:
    """Say tokens in and out, and the price where it is known; nothing where nothing was spent."""
    read, written = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    cost = usage.get("cost_usd")
    if not (read or written or cost):
        return ""
    price = f", ${cost:.4f}" if cost is not None else ""
    return f"{read:,.0f} tokens in, {written:,.0f} out{price}"
