"""Change a value in the text of a YAML file that is not ours, such as a client's settings."""

import io
from collections.abc import Mapping

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from shoal.errors import BadInput


def set_entry(text: str, section: str, name: str, entry: Mapping[str, object] | None) -> str:
    """Return *text* with *entry* as *name* in *section*; `None` removes it. Comments, order and quotes stay."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 2**20
    try:
        found = yaml.load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"is no YAML ({' '.join(str(error).split())[:200]})") from None
    settings = CommentedMap() if found is None else found
    if not isinstance(settings, dict):
        raise BadInput("is no map")
    known = settings.get(section)
    if known is not None and not isinstance(known, dict):
        raise BadInput(f"`{section}` is no map")
    if entry is None:
        if not known or name not in known:
            return text
        del known[name]
    else:
        if known is None:
            settings[section] = known = CommentedMap()
        old = known.get(name)
        if isinstance(old, dict) and {**old, **entry} == old:
            return text
        known[name] = {**(old if isinstance(old, dict) else {}), **entry}
    out = io.StringIO()
    yaml.dump(settings, out)
    return out.getvalue()
