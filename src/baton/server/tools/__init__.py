"""Tools: what a request defines, what the model must be forced to write, and the calls in what it wrote."""
