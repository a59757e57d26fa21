"""Find the tools that a request asks the provider itself to run: they bypass every list of hosts."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

MOST_DEPTH = 100
MOST_VALUES = 1_000_000

Tool = tuple[str, str]
"""What was asked for, in the provider's words, and the grant that would allow it."""

Items = Iterator[Tool]

CLIENT_TOOLS = re.compile(r"(custom|(bash|text_editor|computer|memory|tool_search_tool_(regex|bm25))(_\d+)?)")
"""Anthropic's tools that the client carries out, and those that only search the client's own tools."""
OPENAI_CLIENT_TOOLS = {"function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview"}
STEMS = {
    "web_search": "web_search",
    "web_fetch": "web_fetch",
    "code_execution": "code_execution",
    "code_interpreter": "code_execution",
    "mcp": "mcp",
    "file_search": "files",
    "google_search": "web_search",
    "googlesearch": "web_search",
    "url_context": "web_fetch",
    "urlcontext": "web_fetch",
    "codeexecution": "code_execution",
    "filesearch": "files",
}
SEARCHING_MODELS = re.compile(
    r"search-(preview|api)|deep-research|:online$|(^|/)compound(-|$)|(^|/)sonar(-|$)", re.IGNORECASE
)
"""Models that search the web unasked."""
SEARCHING_KEYS = re.compile(r"search")
"""Members by which providers are made to search: `web_search_options`, `search_parameters`, `enable_search`."""
REDIRECTING_KEYS = re.compile(r"^(api_base|base_url|api_key)$")
"""Members by which some servers are made to ask another one."""


def find_refusal(tools_of: Callable[[Mapping[str, Any]], Items], body: bytes, grants: Collection[str]) -> str | None:
    """Return why a request must not pass, or `None`; anything ambiguous does not pass."""
    if sum(map(body.count, (b",", b"{", b"["))) > MOST_VALUES:  # also in texts: it takes no time to find out
        return f"the request may have {MOST_VALUES:,} values and commas"
    try:
        # As a text: of bytes, Python would also read UTF-16 and UTF-32, which a server may read differently.
        document = json.loads(body.decode(), object_pairs_hook=_read_pairs, parse_constant=_refuse_constant)
        _assert_shallow(document)
    except (ValueError, RecursionError) as error:
        return f"the request is not JSON that the gateway can check: {str(error)[:200]}"
    if not isinstance(document, dict):
        return "the request is not a JSON object"
    lowered = {key.lower(): value for key, value in document.items()}  # some upstreams ignore the case of keys
    if len(lowered) != len(document):
        return "the request has a key twice, in upper and in lower case"
    for asked, grant in tools_of(lowered):
        if grant not in grants:
            return (
                f"{_shorten(asked)} is carried out by the provider, past the sandbox's network rules, and is not"
                f" granted; to allow it, add `provider_tools: [{grant}]`"
            )
    return None


def anthropic_tools(body: Mapping[str, Any]) -> Items:
    """List the tools that a request asks Anthropic to run."""
    for tool in _list(body.get("tools")):
        kind = tool.get("type", "custom") if isinstance(tool, dict) else tool
        if kind is not None and not (isinstance(kind, str) and CLIENT_TOOLS.fullmatch(kind)):
            yield f"the tool {kind}", _grant_for(kind)
    if body.get("mcp_servers"):
        yield "mcp_servers", "mcp"
    if body.get("container"):
        yield "container", "code_execution"
    for block in _mappings([body.get("system"), body.get("messages")], skip=("input",)):
        source = block.get("source")
        if block.get("type") == "container_upload":
            yield "container_upload", "code_execution"
        elif isinstance(source, dict) and source.get("type") not in ("base64", "text", "content"):
            kind = source.get("type")
            yield f"a source of the type {kind}", {"url": "url_media", "file": "files"}.get(str(kind), "other")


def openai_tools(body: Mapping[str, Any]) -> Items:
    """List the tools that a completion or response request asks the provider to run."""
    yield from _openai_listed(body.get("tools"))
    for model in (body.get("model"), *_list(body.get("models"))):
        if SEARCHING_MODELS.search(str(model)):
            yield f"the model {model}", "web_search"
    for key, value in body.items():
        if SEARCHING_KEYS.search(key) and value is not None and value is not False:
            yield key, "web_search"
        elif REDIRECTING_KEYS.search(key) and value is not None:
            yield key, "other"
    for plugin in _list(body.get("plugins")):
        yield f"the plugin {plugin.get('id') if isinstance(plugin, dict) else plugin}", "other"
    for key in ("prompt", "conversation"):
        if isinstance(body.get(key), dict) or (key == "conversation" and body.get(key)):
            yield f"a stored {key}", "stored_prompts"
    if body.get("background"):
        yield "background", "other"
    for part in _mappings([body.get("messages"), body.get("input")]):
        yield from _openai_media(part)


def _openai_listed(tools: object) -> Items:
    for tool in _list(tools):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        if kind == "namespace" and isinstance(tool, dict):
            yield from _openai_listed(tool.get("tools"))
        elif kind == "shell" and isinstance(tool, dict) and _mapping(tool.get("environment")).get("type") == "local":
            continue
        elif kind not in OPENAI_CLIENT_TOOLS:
            yield f"the tool {kind}", _grant_for(kind)


def _openai_media(part: Mapping[str, Any]) -> Items:
    for key, given in part.items():
        if not key.lower().endswith("_url"):  # `image_url`, `file_url`, `document_url`, `audio_url`
            continue
        url = given.get("url") if isinstance(given, dict) else given
        if url is not None and not (isinstance(url, str) and url.startswith("data:")):
            yield f"a URL as {key}", "url_media"
    if part.get("file_id") is not None:
        yield "a stored file", "files"
    file_data = part.get("file_data")
    if isinstance(file_data, str) and "://" in file_data[:32]:
        yield "a URL as file_data", "url_media"


def gemini_tools(body: Mapping[str, Any]) -> Items:
    """List the tools that a request asks Gemini to run; its JSON has two spellings."""
    given = {_spell(key): value for key, value in body.items()}
    if len(given) != len(body):
        yield "a key in two spellings", "other"
    for tool in _list(given.get("tools")):
        for key in tool if isinstance(tool, dict) else [tool]:
            if _spell(key) not in ("functiondeclarations", "computeruse"):
                yield f"the tool {key}", _grant_for(_spell(key))
    if given.get("cachedcontent"):
        yield "cachedContent", "stored_prompts"
    for inner in (*_list(given.get("generatecontentrequest")), *_list(given.get("requests"))):
        yield from gemini_tools(_mapping(inner))
    asked = [given.get(key) for key in ("contents", "content", "systeminstruction")]
    for part in _mappings(asked, skip=("args", "response")):
        if any(_spell(key) == "filedata" for key in part):
            yield "a file by its URI", "url_media"


def _grant_for(kind: object) -> str:
    if not isinstance(kind, str):
        return "other"
    return next((grant for stem, grant in STEMS.items() if kind.startswith(stem)), "other")


def _spell(key: object) -> str:
    return str(key).replace("_", "").lower()


def _list(value: object) -> list[Any]:
    """Return a list; any other value counts as its only item, so that nothing is missed."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object, *, skip: Collection[str] = ()) -> Iterator[Mapping[str, Any]]:
    """Return every object in *value*, but none below a key in *skip*, which holds a tool's own arguments."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += [inner for key, inner in item.items() if key not in skip]
        elif isinstance(item, list):
            waiting += item


def _read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a duplicate key: the provider may read the other one."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is there twice")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _assert_shallow(document: object) -> None:
    level = [document]
    for _ in range(MOST_DEPTH):
        level = [inner for item in level for inner in _inner(item)]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {MOST_DEPTH}")


def _inner(item: object) -> Iterator[object]:
    if isinstance(item, dict):
        yield from item.values()
    elif isinstance(item, list):
        yield from item


def _shorten(text: str) -> str:
    shown = ascii(text)[1:-1]
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
