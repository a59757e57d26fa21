"""`shoal schema`: the JSON Schema of pipeline files, for editors."""

from shoal.cli import output
from shoal.cli.options import Json
from shoal.pipeline.editor_schema.schema import schema
from shoal.store.documents import text


def command(json: Json = False) -> int:
    """Print the JSON Schema of pipeline files, for editors.

    `shoal schema > .shoal/schema.json` writes it where files from `shoal init` expect it.
    """
    output.print_out(text(schema()))
    return 0
