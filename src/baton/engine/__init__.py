"""Storage, batches, runner, executor and the loop of one engine."""
