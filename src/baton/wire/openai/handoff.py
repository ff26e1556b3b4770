"""`kv_transfer_params` of an answer, with the field names of vLLM's NIXL connectors."""

from __future__ import annotations

import msgspec


class TicketParams(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prompt's KV can be had. A proxy puts it into the request to the decode engine as it is.

    Attributes:
        remote_request_id: the transfer_id again, for proxies that know no transfer_id.
        remote_block_ids: one list a group of layers; there is one group.
        remote_num_tokens: tokens whose KV is kept.
    """

    do_remote_prefill: bool = True
    do_remote_decode: bool = False
    remote_engine_id: str
    remote_request_id: str
    remote_block_ids: tuple[tuple[int, ...], ...]
    remote_host: str
    remote_port: int
    tp_size: int
    pp_size: int
    remote_num_tokens: int
    transfer_id: str
