"""Programs for torchrun, on meshes of processes: the variables that ``torch.distributed`` reads, and the scripts.

Nothing here imports torch.
"""

from monarch._public import publish
from monarch.spmd._actor import SPMDActor
from monarch.spmd._set_up import setup_torch_elastic_env, setup_torch_elastic_env_async

__all__ = ["SPMDActor", "setup_torch_elastic_env", "setup_torch_elastic_env_async"]

publish(__name__, {name: globals()[name] for name in __all__})
