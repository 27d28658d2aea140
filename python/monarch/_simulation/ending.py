"""The end of a block: what has failed is decided before, as at the end of a script."""

from __future__ import annotations

from monarch import _core
from monarch._errors.mesh_failure import MeshFailure
from monarch._running import unhandled
from monarch._runtime import runtime

_STEP = 0.05  # seconds, of the simulation, as all here
# Nobody has held anything back for so long: what climbs is on its way from one owner to the next for less.
_QUIET = 2 * _STEP
_LIMIT = 60.0


def decide_rest() -> None:
    """Lets the world go on until nobody holds a failure back. Raises what ends the script meanwhile: ``SystemExit``."""
    if _core.simulation_is_broken():
        return  # it does not go on, and its script has been told
    unhandled.excuse_simulated = _is_of_chance
    _core.simulated_kills_end()
    began = quiet_since = _core.simulated_now()
    while True:
        _core.simulated_sleep(_STEP)
        now = _core.simulated_now()
        if any(of["here"].held for of in _core.simulated_locals_of_all() if "here" in of):
            quiet_since = now
        if now - began >= _LIMIT or (now - began >= runtime.ANSWER_GRACE and now - quiet_since >= _QUIET):
            return


def _is_of_chance(failure: MeshFailure) -> bool:
    """It would have had more time to be told, if the block had not ended."""
    return bool(_core.simulated_by_chance(failure._source[0]))
