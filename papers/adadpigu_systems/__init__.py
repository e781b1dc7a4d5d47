"""The other systems that the AdaDPIGU paper names, each an honest private method: one file each, found by themselves.

They plug into the package through the entry points `adadpigu.methods` and `adadpigu.presets`, as anybody's method can.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
