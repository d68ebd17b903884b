"""What the edited vLLM calls at run time on Ascend NPUs; `python -m ascend_runtime` is its doctor.

Importing it from an installed wheel warns, in one line, if another distribution owns `vllm/` too or
has overwritten it. A stock vLLM installed over the renamed wheel never imports this package, so
that only `python -m ascend_runtime` can tell of it.
"""

from ascend_runtime.owners import check_owner

check_owner()
