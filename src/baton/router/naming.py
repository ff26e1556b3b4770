"""Workers as a person names them: on a command line, in a file, in a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from baton.core.errors import ConfigError
from baton.core.handoff import Role, TransferMode
from baton.router.worker import WorkerSpec
from baton.wire.engine import PeerInfo


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How other engines reach a worker that cannot be asked."""

    engine_id: str
    host: str
    port: int
    tp_size: int = 1
    pp_size: int = 1


class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker as POST /workers and a workers file take it. See WorkerSpec.

    Attributes:
        lease: it registers itself, and does so again and again.
    """

    url: str
    role: Role | None = None
    transfer_mode: TransferMode | None = None
    api_key: str | None = None
    peer: Endpoint | None = None
    lease: bool = False

    def spec(self) -> WorkerSpec:
        """As the fleet takes it.

        Raises:
            ConfigError: the URL is none of a worker.
        """
        peer = None
        if self.peer is not None:
            peer = PeerInfo(role=self.role or Role.PREFILL, **msgspec.structs.asdict(self.peer))
        return WorkerSpec(
            url=clean_url(self.url),
            role=self.role,
            transfer_mode=self.transfer_mode,
            peer=peer,
            api_key=self.api_key,
        )


def clean_url(given: str) -> str:
    """A worker's URL as its id: scheme, host and port, no more.

    Raises:
        ConfigError: it is something else.
    """
    try:
        parts = urlsplit(given.strip())
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        raise _bad_url(given) from None
    if not good or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise _bad_url(given)
    return f"{parts.scheme}://{parts.netloc.lower()}"


def named_workers(
    prefill: Iterable[str], decode: Iterable[str], others: Iterable[str], file: Path | None = None
) -> list[WorkerSpec]:
    """The workers of a command line.

    Args:
        prefill, decode, others: URLs.
        file: JSON list of registrations.

    Raises:
        ConfigError: a URL is none, one is named twice, or the file is not as it should be.
    """
    by_role = ((Role.PREFILL, prefill), (Role.DECODE, decode), (None, others))
    named = [Registration(url=url, role=role) for role, urls in by_role for url in urls]
    specs = [registration.spec() for registration in (*named, *(() if file is None else _read(file)))]
    urls = [spec.url for spec in specs]
    for url in urls:
        if urls.count(url) > 1:
            raise ConfigError(f"the worker {url} is named twice; for both roles, name it once with --worker")
    return specs


def _read(file: Path) -> Sequence[Registration]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Registration])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the workers file {file}: {error}") from error


def _bad_url(given: str) -> ConfigError:
    return ConfigError(f"{given[:200]!r} is not the URL of a worker; write http://HOST:PORT and nothing behind it")
