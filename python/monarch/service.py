"""Old module, from before actors were called actors: see ``monarch.actor``."""

from monarch._notices import deprecated_module
from monarch.actor import *  # noqa: F403
from monarch.actor import ActorError as ServiceCallFailedException  # noqa: F401
from monarch.actor import ActorMesh as ActorMeshRef  # noqa: F401
from monarch.actor import ActorMesh as Service  # noqa: F401

deprecated_module(__name__)
