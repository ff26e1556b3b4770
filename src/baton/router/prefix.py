"""Which workers have seen the start of a prompt: a radix tree over the latest prompts, in pieces of 64 bytes."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator

_PIECE_BYTES = 64
_MAX_NODES = 1 << 16


class _Node:
    __slots__ = ("children", "holders", "parent", "piece")

    def __init__(self, parent: _Node | None, piece: bytes) -> None:
        self.parent = parent
        self.piece = piece
        self.children: dict[bytes, _Node] = {}
        self.holders: set[str] = set()


class Prefixes:
    """Remembers prompts by holder, and forgets the oldest. It is a guess: what a worker has evicted is not known.

    Args:
        max_nodes: pieces kept in all; each is some hundred bytes of memory.
    """

    def __init__(self, max_nodes: int = _MAX_NODES) -> None:
        self._max_nodes = max_nodes
        self._root = _Node(None, b"")
        self._by_age: OrderedDict[_Node, None] = OrderedDict()  # oldest first; a node is never older than a child

    def __len__(self) -> int:
        return len(self._by_age)

    def add(self, holder: str, prompt: bytes) -> None:
        """`holder` has, or will soon have, the KV of this prompt."""
        node = self._root
        path = []
        for piece in _pieces(prompt):
            found = node.children.get(piece)
            if found is None:
                found = node.children[piece] = _Node(node, piece)
            found.holders.add(holder)
            path.append(found)
            node = found
        for node in reversed(path):
            self._by_age[node] = None
            self._by_age.move_to_end(node)
        while len(self._by_age) > self._max_nodes:
            self._forget()

    def matches(self, prompt: bytes) -> dict[str, int]:
        """Bytes at the start of this prompt that each holder has seen in one prompt; only those that saw a piece."""
        lengths: defaultdict[str, int] = defaultdict(int)
        node = self._root
        for depth, piece in enumerate(_pieces(prompt), 1):
            found = node.children.get(piece)
            if found is None:
                break
            for holder in found.holders:
                lengths[holder] = depth * _PIECE_BYTES
            node = found
        return lengths

    def _forget(self) -> None:
        """Drop the oldest node. It is a leaf: whoever touches a node touches its parents afterwards."""
        node, _ = self._by_age.popitem(last=False)
        assert node.parent is not None
        assert not node.children
        del node.parent.children[node.piece]


def _pieces(prompt: bytes) -> Iterator[bytes]:
    """Whole pieces; what is left at the end is not one."""
    for start in range(0, len(prompt) - _PIECE_BYTES + 1, _PIECE_BYTES):
        yield prompt[start : start + _PIECE_BYTES]
