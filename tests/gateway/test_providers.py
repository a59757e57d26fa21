"""Which calls pass, with which key, and which of a provider's own tools are refused."""

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.gateway.find_upstreams import without_keys
from shoal.gateway.providers import ANTHROPIC, GEMINI, OPENAI, PROVIDERS, CheckedRequest, Provider
from shoal.model.gateway import Upstream
from shoal.testing.model import ModelServer

PASS = [
    (ANTHROPIC, "POST", "/v1/messages?beta=true"),
    (ANTHROPIC, "POST", "/v1/messages/count_tokens"),
    (ANTHROPIC, "GET", "/v1/models?limit=1000"),
    (ANTHROPIC, "GET", "/v1/models/claude-opus-5"),
    (ANTHROPIC, "HEAD", "/"),
    (OPENAI, "POST", "/v1/chat/completions"),
    (OPENAI, "POST", "/v1/responses"),
    (OPENAI, "POST", "/v1/embeddings"),
    (OPENAI, "GET", "/v1/models"),
    (OPENAI, "GET", "/v1/models/mistralai/mistral-7b:free"),
    (GEMINI, "POST", "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse&key=token"),
    (GEMINI, "POST", "/v1beta/models/gemini-2.5-flash:generateContent"),
    (GEMINI, "POST", "/v1/models/gemini-2.5-flash:countTokens"),
]
STOP = [
    (ANTHROPIC, "GET", "/v1/messages"),
    (ANTHROPIC, "POST", "/v1/files"),
    (ANTHROPIC, "POST", "/v1/messages/batches"),
    (ANTHROPIC, "GET", "/v1/organizations/api_keys"),
    (ANTHROPIC, "POST", "/v1/messages?beta=true&beta=false"),
    (ANTHROPIC, "POST", "/v1/messages?x=y"),
    (ANTHROPIC, "POST", "/v1/messages?"),
    (ANTHROPIC, "POST", "/v1/messages#x"),
    (ANTHROPIC, "POST", "/v1/messages/"),
    (ANTHROPIC, "POST", "//v1/messages"),
    (ANTHROPIC, "POST", "/v1//messages"),
    (ANTHROPIC, "POST", "/v1/./messages"),
    (ANTHROPIC, "POST", "/v1/x/../messages"),
    (ANTHROPIC, "POST", "/v1/messages/..%2ffiles"),
    (ANTHROPIC, "POST", "/v1%2fmessages"),
    (ANTHROPIC, "POST", "/v1/messages;x"),
    (ANTHROPIC, "POST", "/v1/messages\\x"),
    (ANTHROPIC, "POST", "/v1/messages\x00"),
    (ANTHROPIC, "POST", "/v1/messages\n"),
    (ANTHROPIC, "POST", "/v1/messages x"),
    (ANTHROPIC, "POST", "http://api.anthropic.com/v1/messages"),
    (ANTHROPIC, "POST", "api.anthropic.com:443"),
    (ANTHROPIC, "POST", "*"),
    (ANTHROPIC, "POST", ""),
    (ANTHROPIC, "GET", "/v1/models/.."),
    (ANTHROPIC, "post", "/v1/messages"),
    (ANTHROPIC, "GET", "/v1/models?after_id=" + "x" * 3000),
    (OPENAI, "GET", "/v1/responses/resp_1"),
    (OPENAI, "GET", "/v1/models/../files"),
    (OPENAI, "DELETE", "/v1/models/m"),
    (OPENAI, "POST", "/v1/files"),
    (GEMINI, "POST", "/v1beta/models/m:generateContent?fields=candidates"),
    (GEMINI, "POST", "/v1beta/models/m:generateContent?alt=media"),
    (GEMINI, "POST", "/v1beta/models/m:generateContent?access_token=x"),
    (GEMINI, "POST", "/v1beta/models/m:batchGenerateContent"),
    (GEMINI, "POST", "/upload/v1beta/files"),
    (GEMINI, "POST", "/v1beta/cachedContents"),
]


@pytest.mark.parametrize(("provider", "method", "target"), PASS)
def test_a_call_that_a_client_needs_passes(provider: Provider, method: str, target: str) -> None:
    route = provider.find_route(method, target)

    assert route is not None
    assert "token" not in route.target.replace("count_tokens", "").replace("countTokens", "")


@pytest.mark.parametrize(("provider", "method", "target"), STOP)
def test_any_other_call_is_refused(provider: Provider, method: str, target: str) -> None:
    assert provider.find_route(method, target) is None


@given(st.text(max_size=60), st.sampled_from(list(PROVIDERS.values())))
@settings(max_examples=200, deadline=None)
def test_a_target_of_any_text_is_refused_without_an_error(text: str, provider: Provider) -> None:
    assert provider.find_route("POST", "/v1/messages" + text + "!") is None
    provider.find_route("GET", text)


def test_the_key_takes_the_place_of_every_credential() -> None:
    sent = [
        (b"Authorization", b"Bearer token"),
        (b"X-API-Key", b"token"),
        (b"x-goog-api-key", b"token"),
        (b"Cookie", b"a=b"),
        (b"OpenAI-Organization", b"org"),
        (b"X-HTTP-Method-Override", b"DELETE"),
        (b"X-Goog-FieldMask", b"candidates"),
        (b"Connection", b"close, X-Secret"),
        (b"x-secret", b"1"),
        (b"Accept-Encoding", b"gzip"),
        (b"Content-Type", b"application/json; charset=utf-7"),
        (b"ChatGPT-Account-Id", b"another account"),
        (b"Host", b"127.0.0.1"),
        (b"anthropic-version", b"2023-06-01"),
    ]
    version = (b"anthropic-version", b"2023-06-01")
    plain = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]

    assert ANTHROPIC.set_key(sent, "real") == [version, (b"x-api-key", b"real"), *plain]
    assert ANTHROPIC.set_key(sent, "sk-ant-oat1") == [version, (b"authorization", b"Bearer sk-ant-oat1"), *plain]
    assert OPENAI.set_key(sent, "real") == [version, (b"authorization", b"Bearer real"), *plain]
    assert GEMINI.set_key(sent, "real") == [version, (b"x-goog-api-key", b"real"), *plain]


@pytest.mark.parametrize("name", [b"x-portkey-custom-host", b"Helicone-Target-Url", b"x-litellm-key", b"X-Base-URL"])
def test_no_header_leads_the_key_to_another_server(name: bytes) -> None:
    assert name not in dict(OPENAI.set_key([(name, b"https://evil.test")], "sk-1"))


def test_no_variable_takes_a_key_into_a_sandbox_by_another_name() -> None:
    keys = [Upstream(name="mine", url="http://x", format="openai", key=key) for key in ("real-key-of-team", "none", "")]
    env = {"TEAM_KEY": "real-key-of-team", "HEADERS": "x: real-key-of-team", "OPENAI_API_KEY": "a", "LEVEL": "none"}

    assert without_keys(env, keys) == {"LEVEL": "none"}


def test_the_token_is_found_wherever_clients_put_it() -> None:
    assert ANTHROPIC.session_token([(b"X-Api-Key", b"t")], "/") == "t"
    assert ANTHROPIC.session_token([(b"authorization", b"bearer t")], "/") == "t"
    assert ANTHROPIC.session_token([(b"authorization", b"Bearer t"), (b"x-api-key", b"t")], "/") == "t"
    assert GEMINI.session_token([], "/x?alt=sse&key=t") == "t"
    assert ANTHROPIC.session_token([], "/x?key=t") is None
    assert ANTHROPIC.session_token([], "/") is None
    assert ANTHROPIC.session_token([(b"authorization", b"Basic t")], "/") == ""
    assert ANTHROPIC.session_token([(b"authorization", b"Bearer t"), (b"x-api-key", b"u")], "/") is None


@pytest.mark.parametrize(
    ("provider", "base", "target", "expected"),
    [
        (ANTHROPIC, "", "/v1/messages?beta=true", "/v1/messages?beta=true"),
        (ANTHROPIC, "/proxy/", "/v1/messages", "/proxy/v1/messages"),
        (OPENAI, "/v1", "/v1/responses", "/v1/responses"),
        (OPENAI, "/api/v1/", "/v1/chat/completions", "/api/v1/chat/completions"),
        (OPENAI, "", "/v1/chat/completions", "/v1/chat/completions"),
    ],
)
def test_an_upstream_may_have_a_path(provider: Provider, base: str, target: str, expected: str) -> None:
    route = provider.find_route("POST", target)

    assert route is not None
    assert provider.upstream_target(base, route) == expected


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
URL_IMAGE = {"type": "image", "source": {"type": "url", "url": "https://evil.test/?secret"}}
CLIENT_TOOL = {"name": "Fetch", "input_schema": {"type": "object", "properties": {"source": {"type": "string"}}}}
USED = {"type": "tool_use", "id": "1", "name": "Fetch", "input": {"source": {"type": "url", "url": "https://x.test"}}}


def messages(*blocks: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*blocks]}]}


FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
GOOD: list[tuple[Provider, dict[str, Any]]] = [
    (ANTHROPIC, {**messages(IMAGE, USED), "tools": [CLIENT_TOOL, {"type": "custom", "name": "x"}]}),
    (ANTHROPIC, {"tools": [{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "e"}]}),
    (ANTHROPIC, {"messages": [], "mcp_servers": [], "container": None, "system": "be good"}),
    (OPENAI, {"tools": [FUNCTION, {"type": "custom", "name": "x"}, {"type": "local_shell"}], "input": "go"}),
    (OPENAI, {"tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION]}], "prompt": "a legacy prompt"}),
    (
        OPENAI,
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}
            ]
        },
    ),
    (GEMINI, {"tools": [{"functionDeclarations": [{"name": "f"}]}], "contents": [{"parts": [{"inlineData": {}}]}]}),
    (GEMINI, {"contents": [{"parts": [{"functionCall": {"name": "f", "args": {"fileData": 1}}}]}]}),
]
BAD: list[tuple[Provider, dict[str, Any], str]] = [
    (ANTHROPIC, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
    (ANTHROPIC, {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, "web_fetch"),
    (ANTHROPIC, {"tools": [CLIENT_TOOL, {"type": "code_execution_20250825", "name": "x"}]}, "code_execution"),
    (ANTHROPIC, {"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "mcp"),
    (ANTHROPIC, {"tools": [{"type": "advisor_20270101"}]}, "other"),
    (ANTHROPIC, {"tools": [{"type": ["web_search_20250305"]}]}, "other"),
    (ANTHROPIC, {"tools": {"type": "web_search_20250305"}}, "web_search"),
    (ANTHROPIC, {"mcp_servers": [{"type": "url", "url": "https://evil.test"}]}, "mcp"),
    (ANTHROPIC, {"container": {"skills": []}} | {"container": "c_1"}, "code_execution"),
    (ANTHROPIC, messages(URL_IMAGE), "url_media"),
    (ANTHROPIC, messages({"type": "tool_result", "tool_use_id": "1", "content": [URL_IMAGE]}), "url_media"),
    (ANTHROPIC, messages({"type": "document", "source": {"type": "content", "content": [URL_IMAGE]}}), "url_media"),
    (ANTHROPIC, messages({"type": "document", "source": {"type": "file", "file_id": "f"}}), "files"),
    (ANTHROPIC, messages({"type": "image", "source": {"type": "bucket", "uri": "gs://evil"}}), "other"),
    (ANTHROPIC, messages({"type": "container_upload", "file_id": "f"}), "code_execution"),
    (OPENAI, {"tools": [{"type": "web_search"}]}, "web_search"),
    (OPENAI, {"tools": [{"type": "web_search_preview_2025_03_11"}]}, "web_search"),
    (OPENAI, {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "code_execution"),
    (OPENAI, {"tools": [{"type": "mcp", "server_url": "https://evil.test"}]}, "mcp"),
    (OPENAI, {"tools": [{"type": "file_search"}]}, "files"),
    (OPENAI, {"tools": [{"type": "image_generation"}]}, "other"),
    (OPENAI, {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}, "other"),
    (OPENAI, {"tools": [{"type": "namespace", "tools": [{"type": "web_search"}]}]}, "web_search"),
    (OPENAI, {"Tools": [{"type": "web_search"}]}, "web_search"),
    (OPENAI, {"web_search_options": {}}, "web_search"),
    (OPENAI, {"model": "gpt-4o-search-preview"}, "web_search"),
    (OPENAI, {"model": "x/y:online"}, "web_search"),
    (OPENAI, {"model": "x/y", "models": ["x/z:online"]}, "web_search"),
    (OPENAI, {"model": "groq/compound-mini"}, "web_search"),
    (OPENAI, {"model": "perplexity/sonar"}, "web_search"),
    (OPENAI, {"search_parameters": {"mode": "on"}}, "web_search"),
    (OPENAI, {"enable_search": True}, "web_search"),
    (OPENAI, {"api_base": "https://evil.test"}, "other"),
    (OPENAI, {"plugins": [{"id": "web"}]}, "other"),
    (OPENAI, {"prompt": {"id": "pmpt_1"}}, "stored_prompts"),
    (OPENAI, {"conversation": "conv_1"}, "stored_prompts"),
    (OPENAI, {"background": True}, "other"),
    (
        OPENAI,
        {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "https://evil.test"}}]}]},
        "url_media",
    ),
    (OPENAI, {"input": [{"content": [{"type": "input_image", "image_url": "https://evil.test"}]}]}, "url_media"),
    (OPENAI, {"input": [{"content": [{"type": "input_file", "file_url": "https://evil.test"}]}]}, "url_media"),
    (OPENAI, {"messages": [{"content": [{"type": "d", "document_url": "https://evil.test"}]}]}, "url_media"),
    (OPENAI, {"messages": [{"content": [{"type": "a", "audio_url": {"url": "https://evil.test"}}]}]}, "url_media"),
    (OPENAI, {"input": [{"content": [{"type": "input_file", "file_id": "f"}]}]}, "files"),
    (GEMINI, {"tools": [{"googleSearch": {}}]}, "web_search"),
    (GEMINI, {"tools": [{"google_search_retrieval": {}}]}, "web_search"),
    (GEMINI, {"tools": [{"functionDeclarations": [], "urlContext": {}}]}, "web_fetch"),
    (GEMINI, {"tools": [{"code_execution": {}}]}, "code_execution"),
    (GEMINI, {"tools": [{"googleMaps": {}}]}, "other"),
    (GEMINI, {"cached_content": "cachedContents/1"}, "stored_prompts"),
    (GEMINI, {"contents": [{"parts": [{"file_data": {"file_uri": "https://evil.test"}}]}]}, "url_media"),
    (GEMINI, {"content": {"parts": [{"file_data": {"file_uri": "https://evil.test"}}]}}, "url_media"),
    (GEMINI, {"requests": [{"content": {"parts": [{"fileData": {"fileUri": "https://evil.test"}}]}}]}, "url_media"),
    (GEMINI, {"generateContentRequest": {"contents": [{"parts": [{"fileData": {"fileUri": "x"}}]}]}}, "url_media"),
]


@pytest.mark.parametrize(("provider", "body"), GOOD)
def test_the_clients_own_tools_and_inline_media_pass(provider: Provider, body: dict[str, Any]) -> None:
    assert provider.refusal(json.dumps(body).encode(), ()) is None


@pytest.mark.parametrize(("provider", "body", "grant"), BAD)
def test_what_the_provider_would_do_itself_needs_a_grant(provider: Provider, body: dict[str, Any], grant: str) -> None:
    refused = provider.refusal(json.dumps(body).encode(), ())

    assert refused is not None
    assert f"add `provider_tools: [{grant}]`" in refused
    assert provider.refusal(json.dumps(body).encode(), (grant,)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"tools": [{"type": "web_search"}], "tools": []}',
        b'{"tools": [], "Tools": [{"type": "web_search"}]}',
        b'{"messages": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"messages": ' + b"[" * 200_000,
        b'{"messages": [' + b"0," * 1_000_000 + b"0]}",
    ],
    ids=range(10),
)
def test_a_body_that_can_be_read_in_two_ways_is_refused(body: bytes) -> None:
    assert all(provider.refusal(body, ()) for provider in PROVIDERS.values())


async def test_a_chat_that_streams_is_made_to_say_what_it_cost() -> None:
    route = OPENAI.find_route("POST", "/v1/chat/completions")
    assert route is not None
    asked = {"model": "m", "messages": [{"role": "user", "content": "go"}], "stream": True}

    checked = OPENAI.check(route, json.dumps(asked).encode(), ())
    assert isinstance(checked, CheckedRequest)
    prepared = checked.body

    assert json.loads(prepared)["stream_options"] == {"include_usage": True}
    assert OPENAI.check(route, prepared, ()) == replace(checked, body=prepared)
    assert checked.model == "m"
    async with ModelServer() as server, httpx2.AsyncClient(base_url=server.url) as http:
        answer = await http.post(route.target, content=prepared)
    meter = OPENAI.meter()
    meter.feed(answer.content)
    assert meter.usage is not None


def test_errors_are_written_as_the_provider_does() -> None:
    for provider in PROVIDERS.values():
        error = json.loads(provider.error(429, "wait"))["error"]
        assert error["message"] == "wait"
