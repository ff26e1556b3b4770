"""HTTP pieces that every server of Baton shares: errors, keys, bodies, event streams, pages."""
