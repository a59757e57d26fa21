"""A sandbox without a network asks its model through the gateway, and reaches nothing else."""

import json

from tests.gateway.scenes import KEY, scene

ASK = """
import json, os, urllib.request
def ask(path, body=None, token=os.environ["TOKEN"], url=os.environ["URL"], **headers):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"x-api-key": token, "content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
def message(text, **more):
    return {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}
"""


async def test_a_sandbox_asks_its_model_with_a_key_that_it_does_not_have() -> None:
    script = ASK + 'print(json.dumps(ask("/anthropic/v1/messages", message("[[s:text in=12 out=3]]"))))'

    async with scene() as here:
        said = await here.run(script)

    status, body = json.loads(said)
    assert status == 200, said
    assert json.loads(body)["usage"]["input_tokens"] == 12
    (exchange,) = here.said
    assert exchange["usage"]["input"] == 12
    assert KEY not in said
