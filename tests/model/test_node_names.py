"""Nodes as a user names them."""

import pytest

from shoal.errors import BadInput
from shoal.model.nodes import NodeAddress, parse_nodes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pipe:4", NodeAddress(carrier="pipe", capacity=4, name="pipe")),
        ("pipe", NodeAddress(carrier="pipe", name="pipe")),
        ("build1", NodeAddress(carrier="ssh", place="build1", name="build1")),
        ("me@build-1.example:8", NodeAddress(carrier="ssh", place="me@build-1.example", capacity=8, name="me@build-1.example")),
        ("[fe80::1]:2", NodeAddress(carrier="ssh", place="[fe80::1]", capacity=2, name="[fe80::1]")),
        ("ray", NodeAddress(carrier="ray", name="ray")),
        ("ray://10.0.0.1:10001", NodeAddress(carrier="ray", place="10.0.0.1:10001", name="ray")),
    ],
)  # fmt: skip
def test_a_node_is_named_in_a_word(text: str, expected: NodeAddress) -> None:
    assert parse_nodes(text) == (expected,)


def test_nodes_that_share_a_name_are_numbered() -> None:
    assert [node.name for node in parse_nodes("pipe:4,build1, pipe:2")] == ["pipe-1", "build1", "pipe-2"]


@pytest.mark.parametrize(
    "text", ["", " , ", "pipe:0", "pipe:9999", "-oProxyCommand=x", "a b", "host;rm", "user@-x", "h:8:9", "http://x"]
)
def test_what_names_no_node_is_refused(text: str) -> None:
    """No word of a user becomes an option of ssh."""
    with pytest.raises(BadInput):
        parse_nodes(text)
