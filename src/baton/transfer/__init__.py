"""Hands KV from a prefill engine to a decode engine: agents, mapping, peers, leases, push and pull. Never torch."""
