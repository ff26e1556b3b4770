"""Every storage type against a dequantisation written out from the format's description (ggml's block structs)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from baton.core.errors import ModelError
from baton.core.model_config import ModelConfig
from baton.core.rope_config import RopeConfig
from baton.models.gguf import gguf_weights
from baton.models.gguf_tensors import check_types
from baton.text.gguf_file import read_gguf

pytestmark = pytest.mark.torch

CONFIG = ModelConfig(
    architecture="Qwen2ForCausalLM",
    hidden_size=512,
    intermediate_size=3,
    num_layers=1,
    num_heads=8,
    num_kv_heads=8,
    head_dim=64,
    vocab_size=8,
    rope=RopeConfig(rotary_dim=64, max_positions=64),
    max_position_embeddings=64,
)
ROWS, COLUMNS = 3, 512


def half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def plain_q4(block: bytes, minimum: bool) -> Iterator[float]:
    """d, [m], 16 bytes: low nibbles are elements 0-15, high nibbles 16-31."""
    d, m, quants = half(block, 0), half(block, 2) if minimum else 0.0, block[4 if minimum else 2 :]
    for nibbles in ([q & 15 for q in quants], [q >> 4 for q in quants]):
        yield from (d * q + m if minimum else d * (q - 8) for q in nibbles)


def plain_q5(block: bytes, minimum: bool) -> Iterator[float]:
    """Like q4, with the fifth bits of the 32 elements in a 32-bit word before the nibbles."""
    d, m = half(block, 0), half(block, 2) if minimum else 0.0
    start = 4 if minimum else 2
    (high,) = struct.unpack_from("<I", block, start)
    quants = block[start + 4 :]
    for i, nibble in enumerate([q & 15 for q in quants] + [q >> 4 for q in quants]):
        q = nibble | (high >> i & 1) << 4
        yield d * q + m if minimum else d * (q - 16)


def plain_q8(block: bytes) -> Iterator[float]:
    d = half(block, 0)
    yield from (d * q for q in struct.unpack_from("<32b", block, 2))


def scale_and_min(packed: bytes, j: int) -> tuple[int, int]:
    """6-bit scale and minimum of sub-block j from 12 bytes: the first four whole, the rest in halves."""
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4
    return scale, packed[j + 4] >> 4 | packed[j] >> 6 << 4


def plain_k45(block: bytes, five: bool) -> Iterator[float]:
    """d, dmin, 12 bytes of scales, [32 bytes of fifth bits], 128 bytes; 8 sub-blocks of 32."""
    d, d_min, packed = half(block, 0), half(block, 2), block[4:16]
    high, quants = (block[16:48], block[48:]) if five else (bytes(32), block[16:])
    for j in range(8):
        scale, minimum = scale_and_min(packed, j)
        for i in range(32):
            byte = quants[32 * (j // 2) + i]
            q = (byte >> 4 if j % 2 else byte & 15) | (high[i] >> j & 1) << 4
            yield d * scale * q - d_min * minimum


def plain_q6_k(block: bytes) -> list[float]:
    """128 bytes of low nibbles, 64 of high bits (2 each), 16 signed scales, d."""
    low, high = block[:128], block[128:192]
    scales, d = struct.unpack_from("<16b", block, 192), half(block, 208)
    out = [0.0] * 256
    for n in (0, 1):
        for i in range(32):
            for quarter in range(4):
                byte = low[64 * n + 32 * (quarter % 2) + i]
                nibble = byte >> 4 if quarter >= 2 else byte & 15
                q = (nibble | (high[32 * n + i] >> 2 * quarter & 3) << 4) - 32
                out[128 * n + 32 * quarter + i] = d * scales[8 * n + 2 * quarter + i // 16] * q
    return out


# Type -> (elements of a block, bytes of a block, places of half-precision numbers, the description above).
Plain = Callable[[bytes], Iterator[float] | list[float]]
BLOCKS: dict[Type, tuple[int, int, tuple[int, ...], Plain]] = {
    Type.Q4_0: (32, 18, (0,), lambda b: plain_q4(b, False)),
    Type.Q4_1: (32, 20, (0, 2), lambda b: plain_q4(b, True)),
    Type.Q5_0: (32, 22, (0,), lambda b: plain_q5(b, False)),
    Type.Q5_1: (32, 24, (0, 2), lambda b: plain_q5(b, True)),
    Type.Q8_0: (32, 34, (0,), plain_q8),
    Type.Q4_K: (256, 144, (0, 2), lambda b: plain_k45(b, False)),
    Type.Q5_K: (256, 176, (0, 2), lambda b: plain_k45(b, True)),
    Type.Q6_K: (256, 210, (208,), plain_q6_k),
}


def write(path: Path, data: np.ndarray, raw: Type | None = None) -> Path:
    """A file with one tensor."""
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_tensor("blk.0.ffn_up.weight", data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path: Path) -> np.ndarray:
    ((name, tensor),) = gguf_weights(path, CONFIG)
    assert name == "model.layers.0.mlp.up_proj.weight"
    return tensor.numpy()


def random_blocks(kind: Type, rng: np.random.Generator) -> np.ndarray:
    """Rows of random bytes whose half-precision numbers are finite and of either sign."""
    elements, size, halves, _ = BLOCKS[kind]
    blocks = rng.integers(0, 256, (ROWS * COLUMNS // elements, size), dtype=np.uint8)
    for at in halves:
        blocks[:, at : at + 2] = rng.normal(0, 0.1, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_random_blocks(kind: Type, tmp_path: Path) -> None:
    """Bit patterns of every kind; the products are of at most three short factors, so float32 is close to exact."""
    elements, size, _, plain = BLOCKS[kind]
    data = random_blocks(kind, np.random.default_rng(3))
    expected = [value for block in data.reshape(-1, size) for value in plain(block.tobytes())]
    assert len(expected) == ROWS * COLUMNS
    assert elements * len(data.reshape(-1, size)) == ROWS * COLUMNS
    values = read(write(tmp_path / "x.gguf", data, raw=kind))
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, np.reshape(expected, (ROWS, COLUMNS)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "bits"),
    [(Type.Q4_0, 4), (Type.Q4_1, 4), (Type.Q5_0, 5), (Type.Q5_1, 5), (Type.Q8_0, 8)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_quantised_weights_come_back_close(kind: Type, bits: int, tmp_path: Path) -> None:
    """What the gguf library quantised is off by no more than about one step of the block's range."""
    weights = np.random.default_rng(5).uniform(-1, 1, (ROWS, COLUMNS)).astype(np.float32)
    values = read(write(tmp_path / "x.gguf", gguf.quants.quantize(weights, kind), raw=kind))
    assert 0 < np.abs(values - weights).max() < 2.2 / 2**bits


def test_f32_is_exact(tmp_path: Path) -> None:
    weights = np.random.default_rng(6).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    np.testing.assert_array_equal(read(write(tmp_path / "x.gguf", weights)), weights)


def test_f16_is_exact(tmp_path: Path) -> None:
    weights = np.random.default_rng(6).normal(size=(ROWS, COLUMNS)).astype(np.float16)
    np.testing.assert_array_equal(read(write(tmp_path / "x.gguf", weights)), weights.astype(np.float32))


def test_bf16_is_exact(tmp_path: Path) -> None:
    """bfloat16 is the upper half of float32."""
    weights = np.random.default_rng(6).normal(size=(ROWS, COLUMNS)).astype(np.float32).view(np.uint32)
    upper = (weights >> 16).astype(np.uint16)
    values = read(write(tmp_path / "x.gguf", upper.view(np.uint8).reshape(ROWS, -1), raw=Type.BF16))
    np.testing.assert_array_equal(values, (upper.astype(np.uint32) << 16).view(np.float32))


def test_tensors_are_writable_copies(tmp_path: Path) -> None:
    """Else torch warns, and a write would crash: the file is mapped read-only."""
    values = read(write(tmp_path / "x.gguf", np.ones((ROWS, COLUMNS), dtype=np.float32)))
    values[0, 0] = 2.0
    assert values.flags.writeable


@pytest.mark.parametrize("kind", [Type.Q2_K, Type.Q3_K, Type.IQ4_NL, Type.IQ2_XXS, Type.TQ1_0, Type.MXFP4])
def test_other_types_are_refused_by_name(kind: Type, tmp_path: Path) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.zeros((ROWS, COLUMNS // block * size), dtype=np.uint8)
    with pytest.raises(ModelError, match=rf"{kind.name} \(tensor blk.0.ffn_up.weight\).*supported: F32, F16") as caught:
        gguf_weights(write(tmp_path / "x.gguf", data, raw=kind), CONFIG)
    assert "\n" not in str(caught.value)


def test_truncated_data(tmp_path: Path) -> None:
    """Found from the header, before any tensor is read."""
    path = write(tmp_path / "x.gguf", np.ones((ROWS, COLUMNS), dtype=np.float32))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"truncated: tensor blk\.0\.ffn_up\.weight ends at byte"):
        check_types(read_gguf(path))
    with pytest.raises(ModelError, match="truncated"):
        gguf_weights(path, CONFIG)
