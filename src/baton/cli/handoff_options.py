"""Flags about hand-offs between engines, made from the fields of HandoffOptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baton.cli.flags import Flag, with_flags
from baton.engine.handoff_options import HandoffOptions

FLAGS = {
    "role": Flag("--role", "Hand-offs: prefill, decode or mixed (both); by default none."),
    "transfer": Flag("--transfer", "push or pull: only that way; auto: as each request says."),
    "side_channel_host": Flag("--side-channel-host", "Address of the control endpoint for other engines."),
    "side_channel_port": Flag("--side-channel-port", "Port of the control endpoint; 0 takes a free one."),
    "advertise_host": Flag("--advertise-host", "How other engines reach the endpoint; by default its own address."),
    "handoff_policy": Flag("--handoff-policy", "When a hand-off fails: recompute, or fail with a retryable error."),
    "handoff_timeout_s": Flag("--handoff-timeout-s", "Seconds from a reservation to its landing."),
    "handoff_lease_s": Flag("--handoff-lease-s", "Seconds that a finished prompt is kept for a silent decode engine."),
    "verify_handoff": Flag("--verify-handoff", "Compare digests of the bytes that crossed; on both sides or none."),
    "nixl_backends": Flag("--nixl-backend", "NIXL plug-in, such as UCX or LIBFABRIC; may be given several times."),
}


def with_handoff_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's parameter `handoff`, a HandoffOptions, by one flag for each of its fields."""
    return with_flags(command, "handoff", HandoffOptions, FLAGS, _options)


def _options(values: dict[str, Any]) -> HandoffOptions:
    return HandoffOptions(**{**values, "nixl_backends": tuple(values["nixl_backends"] or ())})
