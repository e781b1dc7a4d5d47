"""The kernels as a package: where they can be used, that they compile for a GPU, and that their own tests pass.

Those tests need Triton's interpreter and so a process of their own: `TRITON_INTERPRET=1 pytest tests/core/kernels` runs
them by themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adadpigu.core import kernels
from adadpigu.core.kernels import chacha, convolution, factors, outer, rows, top_k

interpreted = os.environ.get("TRITON_INTERPRET") == "1"

FLOAT, DOUBLE = "*fp32", "*fp64"
ROWS: dict[str, Any] = {"rows": FLOAT, "center": DOUBLE, "weight": DOUBLE}
"""arguments of a kernel: the type of one that is given at a launch, or the value of one that is compiled in"""
NORMS = {**ROWS, "scales": None, "partial": DOUBLE, "width": "i32", "ROWS": 4, "COLUMNS": 1024}
SUMS = {**ROWS, "factors": DOUBLE, "partial": DOUBLE, "height": "i32", "ROWS": 8, "COLUMNS": 256}

CONVOLUTION: dict[str, Any] = {
    **dict.fromkeys(("x_record", "x_channel", "x_row", "dy_record", "dy_channel", "dy_row", "out_stride"), "i32"),
    **dict.fromkeys(("height", "width", "out_width", "image", "positions", "outputs", "entries"), "i32"),
    **{"x": FLOAT, "dy": FLOAT, "channels": "i32", "records": "i32", "x_column": 1, "dy_column": 1},
    **dict.fromkeys(("center", "weight", "factors")),
    **{"KERNEL_HEIGHT": 3, "KERNEL_WIDTH": 3, "STEP_DOWN": 1, "STEP_RIGHT": 1, "TOP": 1, "LEFT": 1},
    **{"SPREAD_DOWN": 1, "SPREAD_RIGHT": 1, "COPIES": 1, "OUTSIDE": True, "CHANNELS_INNER": False},
    **{"OUTPUTS": 32, "ENTRIES": 64, "POSITIONS": 32, "WIDEN": False},
}
LARGE: dict[str, Any] = {
    **{**CONVOLUTION, "out": DOUBLE, "center": FLOAT, "weight": FLOAT, "CHANNELS_INNER": True},
    **{"x_channel": 1, "dy_channel": 1, "x_column": "i32", "dy_column": "i32", "OUTPUTS": 64},
}
OUTER: dict[str, Any] = {
    **dict.fromkeys(("m", "left_stride", "right_stride"), "i32"),
    **{"left": FLOAT, "right": FLOAT, "factors": DOUBLE, "center": DOUBLE, "weight": DOUBLE, "partial": DOUBLE},
    **{"COPIES": 1, "RECORDS": 16, "LEFT": 16, "RIGHT": 32},
}
CHACHA: dict[str, Any] = {
    **{"key": "*i32", "following": "*i64", "table": DOUBLE, "out": DOUBLE, "count": "i32", "scale": "fp64"},
    **{"BLOCKS": 128},
}
TOP_K: dict[str, Any] = {
    **{"squares": DOUBLE, "count": "*i64", "ON_DEVICE": True},
    **{"THREADS": 128, "CHUNKS": 3},
}
KERNELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "norms": (rows._norms, NORMS),
    "norms alone": (rows._norms, {**NORMS, "center": None, "weight": None}),
    "norms of rounded rows": (rows._norms, {**NORMS, "scales": DOUBLE}),
    "sums": (rows._sums, {**SUMS, "WHOLE": False}),
    "sums of rounded rows": (rows._sums, {**SUMS, "WHOLE": True}),
    "largest": (top_k._narrow, {**ROWS, **TOP_K, "count": "i32", "ON_DEVICE": False}),
    "largest, counted on the device": (top_k._narrow, {**ROWS, **TOP_K, "center": None, "weight": None}),
    "largest of long rows": (top_k._wide, {**ROWS, **TOP_K, "COLUMNS": 4096}),
    "norms of outer products": (outer._norms, OUTER),
    "sums of outer products": (outer._sums, OUTER),
    "factors": (
        factors._factors,
        {
            **{f"squares{i}": DOUBLE for i in range(4)},
            **{f"count{i}": "i32" for i in range(4)},
            **{"present": "*u1", "factors": DOUBLE, "aim": "fp64", "stability": "fp64", "AUTOMATIC": True},
            **{"LARGEST": sys.float_info.max, "SMALLEST": sys.float_info.min, "RECORDS": 16, "PARTS": 16},
        },
    ),
    "words": (chacha._numbers, {**CHACHA, "out": "*i64", "WHAT": "words"}),
    "normal numbers": (chacha._numbers, {**CHACHA, "WHAT": "normal"}),
    "rounded numbers": (chacha._numbers, {**CHACHA, "WHAT": "rounded"}),
    "rows of products": (convolution._products, {**CONVOLUTION, "WHAT": "rows", "PRECISION": "ieee"}),
    "rows of products in parts": (convolution._products, {**CONVOLUTION, "WHAT": "rows", "PRECISION": "tf32x3"}),
    "norms of products": (convolution._products, {**LARGE, "WHAT": "norms", "PRECISION": "tf32"}),
    "sums of products": (
        convolution._products,
        {**LARGE, "WHAT": "sums", "factors": DOUBLE, "PRECISION": "tf32"},
    ),
    "sums of short products": (
        convolution._products,
        {**LARGE, "WHAT": "sums", "factors": DOUBLE, "PRECISION": "tf32", "x": "*bf16", "dy": "*bf16"},
    ),
}
COMMON = {"out": FLOAT, "b": "i32", "n": "i32", "stride": "i32"}


@pytest.mark.skipif(interpreted, reason="this is the process it starts")
@pytest.mark.parametrize("chosen", ["partial_norms", ""], ids=["one", "all"])
def test_every_kernel_agrees_with_its_oracle(chosen: str) -> None:
    pytest.importorskip("triton")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        str(Path(__file__).parent / ("test_kernel_factors.py" if chosen else "")),
        *(("-k", chosen) if chosen else ()),
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.skipif(interpreted, reason="what is interpreted is not compiled")
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton, compiler = pytest.importorskip("triton"), pytest.importorskip("triton.compiler")
    backend = pytest.importorskip("triton.backends.compiler")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, given = KERNELS[name]
    arguments = {argument: {**COMMON, **given}[argument] for argument in kernel.arg_names}
    built_in = {key: value for key, value in arguments.items() if key.isupper() or not isinstance(value, str)}
    source = compiler.ASTSource(
        kernel,
        {key: "constexpr" if key in built_in else value for key, value in arguments.items()},
        {(kernel.arg_names.index(key),): value for key, value in built_in.items()},
    )
    unfused = "outer" in name or "rounded" in name
    options = {"enable_fp_fusion": False, "num_warps": 1} if unfused else {}
    found = triton.compile(source, target=backend.GPUTarget("cuda", 90, 32), options=options)
    assert found.asm["cubin"]
    # the smallest numbers must count as torch counts them; the first guess of a float64's reciprocal is always `ftz`
    assert ".ftz" not in found.asm["ptx"].replace("rcp.approx.ftz.f64", "")
    # what the error of exact noise is reckoned for
    assert name != "rounded numbers" or {"sqrt.rn.f64", "div.rn.f64"} <= {*found.asm["ptx"].split()}
    # a product that is fused with the subtraction after it might be so in one of the two kernels alone
    assert not (unfused and any(fused in found.asm["ptx"] for fused in ("fma.rn.f32", "fma.rn.f64")))


def test_they_are_for_gpus_and_the_interpreter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not kernels.usable(torch.zeros(1))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernels.usable(torch.zeros(1))


def test_without_triton_everything_imports_and_nothing_is_usable() -> None:
    code = """if True:
        import os, sys
        sys.modules["triton"] = None
        os.environ["TRITON_INTERPRET"] = "1"
        import torch
        from adadpigu.core import kernels
        from adadpigu.core.kernels import chacha, convolution, factors, outer, rows, top_k
        assert not kernels.usable(torch.zeros(1))
    """
    subprocess.run([sys.executable, "-c", code], check=True)
