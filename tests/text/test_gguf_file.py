"""The GGUF header reader: right values, and one line for every file that is not what it should be."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.core.errors import ModelError
from baton.text.gguf_file import read_gguf

METADATA = {"a.text": "grün", "a.int": 7, "a.float": 0.5, "a.yes": True, "a.list": ["x", "y z"], "a.ids": [1, 2, 3]}


def test_values(write_gguf: Callable[..., Path]) -> None:
    file = read_gguf(write_gguf(METADATA))
    assert dict(file.metadata) == METADATA
    assert not file.tensors


def test_get_checks_the_kind(write_gguf: Callable[..., Path]) -> None:
    file = read_gguf(write_gguf(METADATA))
    assert file.get("a.int", int) == 7
    assert file.get("a.int", float) == 7.0
    assert file.get("absent", int) is None
    with pytest.raises(ModelError, match=r"a.yes is bool, expected int"):
        file.get("a.yes", int)
    with pytest.raises(ModelError, match="absent is missing"):
        file.require("absent", str)


def test_tensor_table(tmp_path: Path) -> None:
    """Axes are stored fastest first; data starts at the next multiple of 32 after the table."""
    name = b"blk.0.ffn_up.weight"
    table = struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 8, 3, 0, 64)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + table
    path = tmp_path / "x.gguf"
    path.write_bytes(header + bytes(512))
    (info,) = read_gguf(path).tensors.values()
    assert (info.name, info.shape, info.ggml_type) == (name.decode(), (3, 8), 0)
    assert info.offset_bytes == (len(header) + 31) // 32 * 32 + 64


def test_every_truncation_is_one_line(write_gguf: Callable[..., Path]) -> None:
    path = write_gguf(METADATA)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ModelError) as caught:
            read_gguf(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04 a zip file", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99), "value type 99"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 40), "truncated"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9,
            "nested",
        ),
    ],
)
def test_damaged_files(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=reason):
        read_gguf(path)


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read"):
        read_gguf(tmp_path / "none.gguf")
