"""`shoal schema`: the language for an editor."""

from shoal.cli import output
from shoal.cli.json_output import text
from shoal.cli.options import Json
from shoal.pipeline.editor_schema.schema import schema


def command(json: Json = True) -> int:
    """Print the JSON Schema of pipeline files, for editors.

    `shoal schema > .shoal/schema.json` puts it where the first line of a file that `shoal init` wrote looks for it.
    """
    output.print_out(text(schema()))
    return 0
