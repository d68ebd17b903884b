"""What the edited executor asks about its worker processes."""

from __future__ import annotations

import os
from collections.abc import Mapping


def worker_daemon(env: Mapping[str, str] = os.environ) -> bool:
    """Whether workers are to be daemonic, and so unable to start processes of their own.

    False if DYNAMIC_EPLB is "true" or "1" (in any case of letters) or EXPERT_MAP_RECORD is exactly
    "true": then each worker starts a process that plans the balancing of experts. `env` is read at
    each call.
    """
    if env.get("DYNAMIC_EPLB", "false").lower() in ("true", "1"):
        return False
    return env.get("EXPERT_MAP_RECORD", "false") != "true"
