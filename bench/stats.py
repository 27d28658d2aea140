"""Medians with a bootstrap interval, and ratios of medians with theirs. Inputs are one value per round."""

import random
import statistics

RESAMPLES = 1000


def bootstrap(statistic, *series):
    """95 % interval of `statistic` over resampled rounds of each series; seeded, so that a table can be reprinted."""
    source = random.Random(4711)
    found = sorted(statistic(*[source.choices(one, k=len(one)) for one in series]) for _ in range(RESAMPLES))
    return found[int(RESAMPLES * 0.025)], found[int(RESAMPLES * 0.975) - 1]


def median_interval(values):
    """-> (median, low, high)"""
    return (statistics.median(values), *bootstrap(statistics.median, values))


def ratio_interval(over, under):
    """-> (ratio of the medians, low, high), or None where a median is not positive."""
    if min(over) <= 0 or min(under) <= 0:
        return None

    def ratio(a, b):
        return statistics.median(a) / statistics.median(b)

    return (ratio(over, under), *bootstrap(ratio, over, under))
