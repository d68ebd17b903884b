"""What the edited executor asks about its worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from multiprocessing.util import Finalize


def worker_daemon(env: Mapping[str, str] = os.environ) -> bool:
    """Whether workers are to be daemonic, and so unable to start processes of their own.

    False if DYNAMIC_EPLB is "true" or "1" (in any case of letters) or EXPERT_MAP_RECORD is exactly
    "true": then each worker starts a process that plans the balancing of experts. `env` is read at
    each call.
    """
    if env.get("DYNAMIC_EPLB", "false").lower() in ("true", "1"):
        return False
    return env.get("EXPERT_MAP_RECORD", "false") != "true"


def shut_down_before_join(shutdown: Callable[[], object]) -> None:
    """Have `shutdown` called before the exiting process joins its workers.

    Workers wait for the executor's end of a pipe to close, which `shutdown` does. At exit
    `multiprocessing` terminates daemonic workers but joins others, and it joins them before
    `shutdown` is due where a `weakref.finalize` was made before `multiprocessing.util` was
    imported, and always in a child process such as the engine's. Does nothing while workers are
    daemonic. `shutdown` must bear a second call.
    """
    if not worker_daemon():
        Finalize(None, shutdown, exitpriority=10)
