"""Which tokens run next: sequences, their status, admission, chunking, preemption. Pure: no clock, threads or torch."""
