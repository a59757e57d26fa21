"""An agent of the Agent Client Protocol whose turn is a small script; it runs in the sandbox and imports nothing of ours.

Its argument is a scenario; its own functions write to the pipe, without any SDK.
"""

import json
import os
import sys
import time
from itertools import count
from typing import Any

NUMBERS = count(1)


def say(**message: object) -> None:
    """Write one message."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def hear() -> dict[str, Any]:
    """Read one message; the end of stdin ends the agent."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    read: dict[str, Any] = json.loads(line)
    return read


def update(name: str, /, **what: object) -> None:
    """Tell something of the session."""
    say(method="session/update", params={"sessionId": "s-1", "update": {"sessionUpdate": name, **what}})


def words(text: str) -> None:
    """Let the model say something."""
    update("agent_message_chunk", content={"type": "text", "text": text})


def may(call: str, kind: str, title: str, **given: object) -> str:
    """Ask for a tool, and give the kind of the option that was picked."""
    update("tool_call", toolCallId=call, title=title, kind=kind, status="pending", rawInput=given)
    number = f"ask-{next(NUMBERS)}"
    options = [
        {"optionId": f"{i}", "name": one, "kind": one}
        for i, one in enumerate(("reject_once", "allow_always", "allow_once"))
    ]
    told = {"sessionId": "s-1", "toolCall": {"toolCallId": call, "rawInput": given}, "options": options}
    say(id=number, method="session/request_permission", params=told)
    while (heard := hear()).get("id") != number:
        pass
    outcome = heard["result"]["outcome"]
    return options[int(outcome["optionId"])]["kind"] if outcome["outcome"] == "selected" else "cancelled"


def write(path: str, content: str) -> str:
    """Write a file, if that may be."""
    picked = may(f"w-{path}", "edit", f"Write {path}", file_path=os.path.abspath(path), content=content)
    if picked.startswith("allow"):
        with open(path, "w") as file:
            file.write(content)
    update("tool_call_update", toolCallId=f"w-{path}", status="completed" if picked.startswith("allow") else "failed")
    return picked


def shell(command: str, *, asks: bool = True) -> str:
    """Run a command, if that may be, or without asking."""
    call = f"c-{next(NUMBERS)}"
    picked = may(call, "execute", command, command=command) if asks else "unasked"
    if not asks:
        update(
            "tool_call", toolCallId=call, title=command, kind="execute", status="pending", rawInput={"command": command}
        )
    if picked.startswith(("allow", "unasked")):
        os.system(command)
        update("tool_call_update", toolCallId=call, status="completed", rawOutput="done")
    return picked


def turn(scenario: str, prompt: str) -> dict[str, Any]:
    """Do what the scenario says, and give how the turn ended."""
    match scenario:
        case "chat":
            words(f"{prompt}\n")
            if prompt == "do it":
                while not os.path.exists("go"):
                    time.sleep(0.02)
            write(f"{prompt}.txt", prompt)
            return {"stopReason": "end_turn", "usage": {"totalTokens": 3, "inputTokens": 2, "outputTokens": 1}}
        case "work":
            update(
                "plan",
                entries=[
                    {"content": "write", "priority": "high", "status": "completed"},
                    {"content": "run", "priority": "low", "status": "pending"},
                ],
            )
            for piece in ("I wr", "ite it", ".\nThen ", "I run it."):
                words(piece)
            words(f" {write('hello.txt', prompt)}")
            words(f"shell: {shell('echo ran > ran.txt')}")
            update("usage_update", used=5, size=10, cost={"amount": 0.25, "currency": "USD"})
            update("of_another_century", what=[1, 2, 3])
            return {
                "stopReason": "end_turn",
                "usage": {"totalTokens": 15, "inputTokens": 7, "outputTokens": 5, "cachedReadTokens": 3},
            }
        case "unasked":
            shell("echo ran > ran.txt", asks=False)
        case "defiant":
            picked = may("c", "execute", "x", command="echo ran > ran.txt")
            os.system("echo ran > ran.txt")
            update("tool_call_update", toolCallId="c", status="completed", rawOutput=picked)
            time.sleep(4711)
        case "resumable" if os.path.exists("half.txt"):
            with open(os.path.expanduser("~/talk")) as talk:
                words(f"loaded {talk.read()!r}, asked {prompt.split()[2]!r}")
        case "unloadable" if os.path.exists("half.txt"):
            words(f"asked {prompt!r}")
        case "resumable" | "unloadable":
            with open(os.path.expanduser("~/talk"), "w") as talk:
                talk.write(prompt)
            write("half.txt", "half")
            words(f"got {prompt}\n")
            hear()
        case "wait":
            write("half.txt", "half")
            words("waiting\n")
            return {"stopReason": wait_for_cancel()}
        case "deaf":
            os.system("sleep 4712 &")
            words("deaf\n")
            time.sleep(4711)
        case "hang":
            time.sleep(4711)
        case "garbage":
            while True:
                print("this is no message", "x" * 100, flush=True)
        case "bytes":
            for line in (
                b"\xff\xfe\x00\n",
                b"[1]\n",
                b"null\n",
                b"{\n",
                b'{"id": [], "method": {}}\n',
                b'{"id": {}, "result": 1}\n',
                b'{"id": 3, "error": "x"}\n',
                b'{"id": 99, "result": 1}\n',
                b'{"method": "session/update", "params": {"update": {"sessionUpdate": "tool_call", "toolCallId": "x", "rawInput": 7, "locations": {"a": 1}, "title": [1]}}}\n',
                b'{"method": "no/such"}\n',
                b"[" * 100_000 + b"\n",
            ):
                os.write(1, line)
            say(id="q", method="terminal/create", params={"sessionId": "s-1", "command": "id"})
            say(id="r", method="fs/read_text_file", params={"sessionId": "s-1", "path": "/etc/passwd"})
            answers = {(one := hear())["id"]: one for _ in range(2)}
            words(f"terminal: {answers['q'].get('result')}, file: {answers['r']['error']['code']}")
        case "huge":
            words("x" * (9 * 2**20))
            words("still here")
        case "many":
            for number in range(3000):
                words(f"word {number}\n")
        case "questions":
            for number in range(10_000):
                say(id=number, method="fs/read_text_file", params={"sessionId": "s-1", "path": "x" * 1000})
            time.sleep(4711)
        case "exit":
            print("cannot find my brain", file=sys.stderr, flush=True)
            os._exit(7)
        case "cut off":
            words("a last wo")
            os._exit(0)
        case "secret":
            token = os.environ["TOKEN"]
            words(token[:6])
            words(token[6:] + "\n")
            may("c-s", "execute", "leak", command=f"echo {token}")
        case "prompt":
            words(prompt)
        case "hasty":
            words("bye")
        case "lie":
            words("Ran into this error: the model is gone.")
        case _:
            return {"stopReason": scenario}
    return {"stopReason": "end_turn"}


def wait_for_cancel() -> str:
    """Wait until the turn is cancelled; what is asked then is answered as cancelled too."""
    while hear().get("method") != "session/cancel":
        pass
    return "cancelled" if write("late.txt", "late") == "cancelled" else "end_turn"


def new_session(scenario: str, params: dict[str, Any]) -> dict[str, Any]:
    """Say what a session has."""
    options = [
        {
            "id": "brain",
            "category": "model",
            "name": "Model",
            "type": "select",
            "currentValue": "small",
            "options": [{"value": "small", "name": "s"}, {"value": "big", "name": "b"}],
        }
    ]
    modes = {"currentModeId": "auto", "availableModes": [{"id": "auto", "name": "a"}, {"id": "approve", "name": "b"}]}
    return (
        {"sessionId": "s-1"} if scenario == "prompt" else {"sessionId": "s-1", "configOptions": options, "modes": modes}
    )


def main(scenario: str) -> None:
    """Answer until stdin ends."""
    while True:
        message = hear()
        number, params = message.get("id"), message.get("params", {})
        match message.get("method"):
            case "initialize":
                assert not params.get("clientCapabilities", {}).get("terminal")
                version = 7 if scenario == "version" else 1
                can = {"loadSession": scenario == "resumable"}
                who = {"name": "tiny", "version": "1"}
                say(id=number, result={"protocolVersion": version, "agentInfo": who, "agentCapabilities": can})
            case "session/load":
                with open(os.path.expanduser("~/talk")) as talk:
                    words(f"said before: {talk.read()}")
                say(id=number, result={"modes": None})
            case "session/new" if scenario == "login":
                say(id=number, error={"code": -32000, "message": "Authentication required"})
            case "session/new" if scenario == "formless":
                say(id=number, result={"sessionId": 7})
            case "session/new":
                say(id=number, result=new_session(scenario, params))
            case "session/set_config_option" if params["value"] not in ("small", "big"):
                say(id=number, error={"code": -32602, "message": "no such model"})
            case "session/set_config_option":
                words(f"model {params['value']}\n")
                say(id=number, result={"configOptions": []})
            case "session/set_mode":
                words(f"mode {params['modeId']}\n")
                say(id=number, result={})
            case "session/prompt":
                say(id=number, result=turn(scenario, params["prompt"][0]["text"]))
                if scenario == "hasty":
                    os._exit(3)


main(sys.argv[1])
