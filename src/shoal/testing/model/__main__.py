"""The model server as a command: `python -m shoal.testing.model --port 0 --script FILE --log FILE`."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from shoal.errors import BadInput, ShoalError
from shoal.testing.model.server import ModelServer


def main() -> int:
    """Serve until it is interrupted; the first line it prints is the address."""
    given = _options().parse_args()
    try:
        asyncio.run(_serve(given))
    except ShoalError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"the model server cannot listen at {given.host}:{given.port}: {error}", file=sys.stderr)
        return BadInput.exit_code
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shoal.testing.model", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--script", type=Path, help="a file of turns; without it, prompts say what is done")
    parser.add_argument("--log", type=Path, help="a file that gets a line of JSON for each request and each turn")
    return parser


async def _serve(given: argparse.Namespace) -> None:
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    script = None
    if given.script is not None:
        from shoal.testing.model.scripts import script_of

        script = script_of(given.script)
    async with ModelServer(script, host=given.host, port=given.port, log=given.log) as server:
        print(server.url, flush=True)
        await over.wait()


if __name__ == "__main__":
    sys.exit(main())
