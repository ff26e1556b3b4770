"""What the KV cache holds and where: specs, byte layout, block pool, prefix index. Integers only, never torch."""
