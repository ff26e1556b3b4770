"""Reads the header of a GGUF file: metadata and the tensor table, never tensor data.

Own reader and not `gguf.GGUFReader`, because that one takes seconds for a vocabulary of 150,000 tokens, and because
a truncated or hostile file must end in one line. Format: the GGUF specification, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from baton.core.errors import ModelError

Scalar = bool | int | float | str
Value = Scalar | list["Value"]
T = TypeVar("T")

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY, _BOOL = 8, 9, 7
# Value type -> struct code. Strings, arrays and bools are read apart.
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_MAX_NESTING = 4
_MAX_DIMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One row of the tensor table.

    Attributes:
        shape: in numpy order (slowest axis first), elements and not bytes.
        ggml_type: number of the storage type (0 is F32, 1 is F16, ...).
        offset_bytes: from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """Header of a GGUF file.

    Attributes:
        metadata: keys as written; arrays as lists.
        tensors: by name, in file order.
        size_bytes: of the whole file.
    """

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    size_bytes: int

    def get(self, key: str, kind: type[T]) -> T | None:
        """Value of `key`, or None when absent. ModelError when it is of another kind; an int serves as float."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if kind is float and type(value) is int:
            return cast(T, float(value))
        if type(value) is not kind:
            raise ModelError(f"{self.path}: {key} is {type(value).__name__}, expected {kind.__name__}")
        return value

    def require(self, key: str, kind: type[T]) -> T:
        """Like `get`, but an absent key is a ModelError."""
        value = self.get(key, kind)
        if value is None:
            raise ModelError(f"{self.path}: {key} is missing in the GGUF metadata")
        return value


def read_gguf(path: Path) -> GgufFile:
    """Parse the header of `path`.

    Raises:
        ModelError: not readable, not a GGUF file, truncated, big-endian, or of another version.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ModelError(f"{path} is not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(path, data).parse()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error


class _Parser:
    """A cursor over the mapped file; every read is checked against its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._pos = len(_MAGIC)

    def parse(self) -> GgufFile:
        version = self._number("I")
        if version not in _VERSIONS:
            big = version in (v << 24 for v in _VERSIONS)
            what = "a big-endian file" if big else f"version {version}"
            raise ModelError(f"{self._path}: {what} of GGUF is not supported, only little-endian versions 2 and 3")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        metadata: dict[str, Value] = {}
        for _ in range(num_keys):
            key = self._string()
            metadata[key] = self._value(self._number("I"), _MAX_NESTING)
        rows = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise ModelError(f"{self._path}: general.alignment must be a positive integer")
        base = -(-self._pos // alignment) * alignment
        tensors = {
            name: TensorInfo(name=name, shape=shape, ggml_type=kind, offset_bytes=base + offset)
            for name, shape, kind, offset in rows
        }
        if len(tensors) != len(rows):
            raise ModelError(f"{self._path}: two tensors of the GGUF file have the same name")
        return GgufFile(path=self._path, metadata=metadata, tensors=tensors, size_bytes=self._size)

    def _take(self, num_bytes: int) -> bytes:
        end = self._pos + num_bytes
        if end > self._size:
            raise ModelError(f"{self._path}: the GGUF file is truncated or damaged (header ends at {self._size} bytes)")
        taken = self._data[self._pos : end]
        self._pos = end
        return taken

    def _number(self, code: str) -> int:
        number: int = struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]
        return number

    def _string(self) -> str:
        # Vocabularies may hold tokens that are no valid UTF-8 on their own.
        return self._take(self._number("Q")).decode("utf-8", "replace")

    def _value(self, kind: int, nesting: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(nesting)
        if kind not in _CODES:
            raise ModelError(f"{self._path}: unknown GGUF value type {kind}; the file is damaged")
        number = self._number(_CODES[kind])
        return bool(number) if kind == _BOOL else number

    def _array(self, nesting: int) -> list[Value]:
        kind, count = self._number("I"), self._number("Q")
        if kind in _CODES:
            width = struct.calcsize("<" + _CODES[kind])
            numbers = struct.unpack(f"<{count}{_CODES[kind]}", self._take(count * width))
            return [bool(n) for n in numbers] if kind == _BOOL else list(numbers)
        if kind == _ARRAY and nesting == 0:
            raise ModelError(f"{self._path}: GGUF arrays nested deeper than {_MAX_NESTING}; the file is damaged")
        return [self._value(kind, nesting - 1) for _ in range(count)]

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dims = self._string(), self._number("I")
        if num_dims > _MAX_DIMS:
            raise ModelError(f"{self._path}: tensor {name} claims {num_dims} axes; the file is damaged")
        shape = tuple(self._number("Q") for _ in range(num_dims))[::-1]
        if math.prod(shape) > self._size * 64:
            raise ModelError(f"{self._path}: tensor {name} is larger than the file; the file is damaged")
        return name, shape, self._number("I"), self._number("Q")
