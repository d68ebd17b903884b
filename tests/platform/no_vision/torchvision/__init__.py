"""Lets modules that handle pictures be imported without torchvision; nothing here can be used.

Seen only by processes whose path has the folder above: transformers would find it everywhere.
"""

import sys
from unittest.mock import MagicMock

__version__ = "0.0"

for _name in ("io", "transforms", "transforms.v2", "transforms.v2.functional"):
    sys.modules[f"{__name__}.{_name}"] = MagicMock()
transforms = sys.modules[f"{__name__}.transforms"]
