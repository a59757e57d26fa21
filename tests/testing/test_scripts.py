"""The position of a conversation in a script."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from shoal.testing.model import Delay, Fail, Message, ModelServer, Request, Say, Script, Turn, Use
from shoal.testing.model.conversation import answers, words
from tests.testing.asking import Client, asking


async def test_turns_are_taken_in_their_order_by_each_conversation() -> None:
    script: Script = [Use("write"), (Use("shell"), Use("write")), Say("done"), Say("and again")]
    async with ModelServer(script) as server, asking(server) as one, asking(server) as other:
        ways = [await one.prompt("go"), await other.prompt("go"), await one.prompt("more"), await one.prompt("more")]

    assert ways[0] == ways[1] == ["Write", "Bash", "Write", "done"]
    assert ways[2:] == [["and again"], ["ok"]]


async def test_the_same_request_again_is_the_same_turn() -> None:
    async with ModelServer([Say("first"), Say("second")]) as server, asking(server) as client:
        client.messages.append({"role": "user", "content": "go"})
        texts = [(await client.post()).json()["choices"][0]["message"]["content"] for _ in range(3)]

    assert texts == ["first"] * 3


async def test_failures_come_before_the_answer_that_they_stand_before() -> None:
    script: Script = [Fail(500, times=2), Fail(429), Use("shell"), Fail(529), Say("done")]
    async with ModelServer(script) as server, asking(server) as client:
        client.messages.append({"role": "user", "content": "go"})
        first = [(await client.post()).status_code for _ in range(4)]
        await client.step()
        then = [(await client.post()).status_code for _ in range(3)]

    assert first == [500, 500, 429, 200]
    assert then == [529, 200, 200]


async def test_a_failure_at_the_end_stays() -> None:
    async with ModelServer([Delay(0, Fail(503))]) as server, asking(server) as client:
        statuses = [(await client.post()).status_code for _ in range(3)]

    assert statuses == [503] * 3


async def test_each_conversation_fails_for_itself() -> None:
    async with ModelServer([Fail(500), Say("done")]) as server, asking(server) as one, asking(server) as other:
        one.messages.append({"role": "system", "content": "You are in /one."})
        other.messages.append({"role": "system", "content": "You are in /other."})
        statuses = [(await client.post()).status_code for client in (one, other, one, other)]

    assert statuses == [500, 500, 200, 200]


async def test_a_side_request_without_tools_is_never_told_to_use_one() -> None:
    script: Script = [Fail(500), Use("shell"), Say("done")]
    async with ModelServer(script) as server, asking(server, {}) as title, asking(server) as client:
        aside = await title.prompt("Give a title.")
        client.messages.append({"role": "user", "content": "go"})
        status = (await client.post()).status_code

    assert aside == ["ok"]
    assert status == 500


async def test_a_client_without_tools_gets_what_is_said() -> None:
    async with ModelServer([Say("one"), Say("two")]) as server, asking(server, {}) as client:
        assert [await client.prompt("a"), await client.prompt("b")] == [["one"], ["two"]]


async def test_a_function_is_asked_for_each_turn() -> None:
    def script(request: Request) -> Turn | None:
        if "directive" in request.user:
            return None
        return Say(f"{request.user} {request.position} {sorted(request.tools)}")

    async with ModelServer(script) as server, asking(server) as client:
        assert await client.prompt("a") == ["a 0 ['Bash', 'Write']"]
        assert await client.prompt("b") == ["b 1 ['Bash', 'Write']"]
        assert await client.prompt("directive [[s:text say=yes]]") == ["yes"]


async def test_a_function_that_raises_is_a_failure_that_says_so() -> None:
    async with ModelServer(lambda request: [][0]) as server, asking(server) as client:
        response = await client.post()

    assert response.status_code == 500
    assert "IndexError" in response.text


async def test_a_call_that_the_client_splits_from_its_siblings_is_one_answer() -> None:
    """One client sends call, result, call, result for two calls of one answer."""
    async with ModelServer([(Use("write"), Use("shell")), Say("done")]) as server, asking(server) as client:
        message = await client.step()
        (one, other), results = message["tool_calls"], client.messages[1:]
        client.messages[:] = [{**message, "tool_calls": [one]}, results[0]]
        client.messages += [{**message, "content": None, "tool_calls": [other]}, results[1]]

        assert (await client.step())["content"] == "done"


def test_an_answer_in_pieces_is_one() -> None:
    user, result = Message("user", ""), Message("result", "")

    assert answers((user, Message("assistant", "a"), Message("assistant", "", "x"), result)) == 1
    assert answers((user, Message("assistant", "", "x"), result, Message("assistant", "", "x"), result)) == 1
    assert answers((user, Message("assistant", "", "x"), result, Message("assistant", "", "y"), result)) == 2
    assert answers((user, Message("assistant", ""), result, Message("assistant", ""))) == 2


@given(st.text())
def test_the_words_of_a_stream_are_its_text(text: str) -> None:
    assert "".join(words(text)) == text


async def test_a_delay_is_waited_for() -> None:
    async with ModelServer([Delay(0.2, Say("late"))]) as server, asking(server) as client:
        before = asyncio.get_running_loop().time()
        assert await client.prompt("go") == ["late"]
        assert asyncio.get_running_loop().time() - before >= 0.2


async def test_many_clients_at_once_do_not_disturb_each_other() -> None:
    count = 100
    async with ModelServer() as server, asking(server) as first, asyncio.TaskGroup() as group:
        clients = [Client(first.http) for _ in range(count)]
        prompts = [client.prompt(f"[[s:both say=number-{number}]]") for number, client in enumerate(clients)]
        tasks = [group.create_task(prompt) for prompt in prompts]
        ways = [await task for task in tasks]

    assert ways == [["Write", "Bash", f"number-{number}"] for number in range(count)]
    assert len(server.requests) == count * 3
