"""When requests arrive: seconds after the start of a run, growing. Pure, seeded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from baton.bench.kinds import RampShape
from baton.core.errors import ConfigError

Times = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Open loop at one mean rate.

    Attributes:
        rate: requests/s; infinite: all at once.
        burstiness: shape of the gamma distribution of gaps: 1 is a Poisson process, less comes in bursts, more is more
            even, infinity is evenly spaced.
    """

    rate: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ConfigError(f"the request rate must be positive (inf: all at once), got {self.rate}")
        _check_burstiness(self.burstiness)

    def times(self, count: int, rng: np.random.Generator) -> Times:
        """Gaps ~ Gamma(shape = burstiness, scale = 1 / (rate * burstiness)), whose mean is 1 / rate.

        Stretched so that the last request arrives at count / rate, as `vllm bench serve` does it: otherwise the mean
        rate of a short run is off by 1 / sqrt(count * burstiness).
        """
        if np.isinf(self.rate) or count == 0:
            return np.zeros(count)
        times: Times = np.cumsum(_gaps(np.full(count, self.rate), self.burstiness, rng))
        times *= count / self.rate / times[-1]
        return times


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Open loop at a rate that goes from `start` to `end` (requests/s), by the number of the request."""

    start: float
    end: float
    shape: RampShape = RampShape.LINEAR
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < min(self.start, self.end) <= max(self.start, self.end) < np.inf:
            raise ConfigError(f"both ends of a ramp must be positive and finite, got {self.start} and {self.end}")
        _check_burstiness(self.burstiness)

    def rates(self, count: int) -> Times:
        """Of each request: start + (end - start) p, or start (end / start)^p, with p from 0 to 1."""
        progress = np.arange(count) / max(count - 1, 1)
        if self.shape is RampShape.LINEAR:
            return self.start + (self.end - self.start) * progress
        return self.start * (self.end / self.start) ** progress

    def times(self, count: int, rng: np.random.Generator) -> Times:
        """As of `Steady`, each gap with the rate of its request; not stretched."""
        return np.cumsum(_gaps(self.rates(count), self.burstiness, rng))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Open loop at the times of a trace.

    Attributes:
        at_s: seconds; the earliest is the start. `workload.build` reads them from the trace.
        speed: 2 plays it twice as fast.
    """

    at_s: tuple[float, ...] = ()
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed < np.inf:
            raise ConfigError(f"the speed of a trace must be positive, got {self.speed}")

    def times(self, count: int, rng: np.random.Generator) -> Times:
        """Of the first `count` requests. `rng` is not used."""
        del rng
        at_s = np.asarray(self.at_s[:count], dtype=np.float64)
        return (at_s - at_s.min()) / self.speed if count else at_s


Arrivals = Steady | Ramp | Recorded | None
"""None: closed loop; a request is sent when another has ended."""


def _gaps(rates: Times, burstiness: float, rng: np.random.Generator) -> Times:
    if np.isinf(burstiness):
        return 1.0 / rates
    return rng.gamma(shape=burstiness, scale=1.0 / (rates * burstiness))


def _check_burstiness(burstiness: float) -> None:
    if not burstiness > 0:
        raise ConfigError(f"burstiness must be positive, got {burstiness}")
