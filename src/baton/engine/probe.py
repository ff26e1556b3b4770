"""What this Python and this machine offer an engine: `python -m baton.engine.probe [BACKEND ...]` prints it as JSON.

A program of its own: loading torch takes seconds, and a broken driver may end the process that asks for it.
"""

from __future__ import annotations

import sys

import msgspec


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    torch: its version; "" when it cannot be loaded, and then torch_error says why.
    gpus: names of CUDA devices.
    nixl_error: why hand-offs cannot use the back ends asked for; "" when they can.
    """

    torch: str = ""
    torch_error: str = ""
    gpus: tuple[str, ...] = ()
    nixl_error: str = ""


def probe(backends: tuple[str, ...]) -> Probe:
    """Load what an engine loads, and start NIXL's back ends."""
    torch, torch_error, gpus = _torch()
    return Probe(torch=torch, torch_error=torch_error, gpus=gpus, nixl_error=_nixl_error(backends))


def _torch() -> tuple[str, str, tuple[str, ...]]:
    try:
        import torch

        gpus = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return str(torch.__version__), "", gpus
    except Exception as error:  # also drivers that do not fit
        return "", f"{type(error).__name__}: {error}", ()


def _nixl_error(backends: tuple[str, ...]) -> str:
    from baton.core.errors import ConfigError
    from baton.transfer.nixl_agent import NixlAgent

    try:
        NixlAgent("doctor", backends)
    except ConfigError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(msgspec.json.encode(probe(tuple(sys.argv[1:]) or ("UCX",))).decode())
