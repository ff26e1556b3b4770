"""Load, measurements, and what is made of them: comparisons, plots, sweeps, accuracy. Knows servers by HTTP only."""
