"""Old module, from before actors were called actors: see ``monarch.actor``."""

from monarch._old_spellings import deprecated_module
from monarch.actor import *  # noqa: F403
from monarch.actor import ActorError as ServiceCallFailedException
from monarch.actor import ActorMesh as ActorMeshRef
from monarch.actor import ActorMesh as Service

__all__ = ["ActorMeshRef", "Service", "ServiceCallFailedException"]

deprecated_module(__name__)
