"""Sets of ranks, for people."""

from __future__ import annotations

_RUNS_MAX = 8  # that are named


def ranks_text(ranks: list[int]) -> str:
    """``ranks 0-30, 33``, of ranks in order: the first of them, if there are too many holes."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    named = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:_RUNS_MAX])
    rest = sum(len(run) for run in runs[_RUNS_MAX:])
    return f"rank{'s' * (len(ranks) > 1)} {named}" + (f" and {rest} more" if rest else "")
