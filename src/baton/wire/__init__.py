"""Every message that leaves a process, as typed structs, and the sockets that carry them. Imports core only."""
