"""Triton kernels for the hot loops of a step on a GPU: each does in one pass what several torch operations do.

They compute what their torch counterparts compute, to rounding; which one runs may not change a result's meaning.
All of it is before the noise: sensitive in, sensitive out, and nothing is kept. Nothing here waits for the device, so
every call can be captured in a CUDA graph. Triton comes with CUDA builds of torch and is otherwise not needed: import
its modules only where a tensor is `usable`.
"""

import functools
import importlib.util
import os

from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""whether this process runs kernels on the CPU, to test them; elsewhere a tensor on a CPU need not be asked about"""


def usable(tensor: Tensor) -> bool:
    """Whether the kernels can run on this tensor: on a GPU, or in Triton's interpreter where TRITON_INTERPRET=1."""
    return (tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and installed()


@functools.cache
def installed() -> bool:
    """Whether Triton is there."""
    return importlib.util.find_spec("triton") is not None
