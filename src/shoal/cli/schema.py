"""`shoal schema`: the language for an editor."""

from shoal.cli import output
from shoal.cli.document import text
from shoal.cli.options import Json
from shoal.pipeline.schema import schema


def command(json: Json = True) -> int:
    """Print the JSON Schema of pipeline files, for editors.

    `shoal schema > .shoal/schema.json` puts it where the first line of a file that `shoal init` wrote looks for it.
    """
    output.say(text(schema()))
    return 0
