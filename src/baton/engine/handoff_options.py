"""What a user may say about hand-offs between engines."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.errors import ConfigError
from baton.core.handoff import FailurePolicy, Role, TransferMode

PEER_SECRET = "BATON_PEER_SECRET"
"""Environment variable of the secret that engines of one fleet share; never in options, which others can read."""

_AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffOptions:
    """Options of an engine's hand-offs.

    Attributes:
        role: "prefill", "decode" or "mixed" (both); None: the engine has no peers.
        transfer: "push" or "pull": only that way; "auto": as each request says.
        side_channel_host, side_channel_port: where the control endpoint listens; port 0 takes a free one.
        advertise_host: how other engines reach it; by default side_channel_host.
        handoff_policy: when a hand-off fails: "recompute" here, or "fail" with a retryable error.
        handoff_timeout_s: from a reservation on the decode engine to its landing.
        handoff_lease_s: how long a prefill engine keeps a finished prompt for a silent decode engine.
        verify_handoff: compare digests of the bytes that crossed; on both sides or on none.
        nixl_backends: NIXL plug-ins, in order of preference; empty: UCX.
    """

    role: str | None = None
    transfer: str = _AUTO
    side_channel_host: str = "127.0.0.1"
    side_channel_port: int = 0
    advertise_host: str | None = None
    handoff_policy: str = FailurePolicy.RECOMPUTE.value
    handoff_timeout_s: float = 120.0
    handoff_lease_s: float = 30.0
    verify_handoff: bool = False
    nixl_backends: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in (("role", Role), ("transfer", TransferMode), ("handoff_policy", FailurePolicy)):
            value, known = getattr(self, name), [item.value for item in kind]
            if value not in known and (name, value) not in (("role", None), ("transfer", _AUTO)):
                raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if not 0 <= self.side_channel_port <= 65535:
            raise ConfigError(f"side_channel_port must be between 0 and 65535, got {self.side_channel_port}")
        for name in ("handoff_timeout_s", "handoff_lease_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        if self.role is not None and self.advertise_host is None and self.side_channel_host in ("0.0.0.0", "::", "*"):
            raise ConfigError(
                f"side_channel_host {self.side_channel_host} is no address for others; give advertise_host too"
            )

    @property
    def transfer_modes(self) -> tuple[TransferMode, ...]:
        """Those that this engine does."""
        return tuple(mode for mode in TransferMode if self.transfer in (_AUTO, mode.value))


NO_PEERS = HandoffOptions()
"""An engine that hands nothing over."""
