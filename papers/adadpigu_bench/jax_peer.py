"""JAX running DP-SGD: one compiled step of vmap(grad), clip, noise and momentum, for nets that are a chain of layers.

The chain is written anew in JAX, layer by layer, from the torch net's shapes and weights.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu_bench.contestants import (
    CLIP_NORM,
    LEARNING_RATE,
    MOMENTUM,
    NOISE_MULTIPLIER,
    Contestant,
    Orders,
    Task,
    Trainer,
    Unavailable,
    refuse_oversize,
    required,
)

_INSTALL = "pip install 'adadpigu-paper[bench]'"
Layer = Callable[[Any, Any], Any]
"""(its weights, one record) -> one record"""


def build(task: Task, contestant: Contestant) -> Trainer:
    """DP-SGD by JAX on the task's net."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU is shared with the other contestants
    jax = required("jax", _INSTALL)
    kind = "gpu" if task.device.startswith("cuda") else "cpu"
    try:
        device = jax.devices(kind)[0]
    except RuntimeError:
        raise Unavailable(f"this JAX has no {kind} back end (pip install jax[cuda12])") from None
    forward, weights = translated(task.card.model(), task.net)
    refuse_oversize(task, 2.2)
    with jax.default_device(device):
        return _compiled(jax, forward, weights, task.card.records(task.batch))


def translated(model: nn.Module, name: str) -> tuple[Callable[[Any, Any], Any], list[Any]]:
    """A chain of torch layers as (function of weights and one record, weights)."""
    numpy = required("jax.numpy", _INSTALL)
    if not isinstance(model, nn.Sequential):
        raise Unavailable(f"not available for this net: {name} is not a chain of layers")
    layers: list[Layer] = [_layer(module) for module in model]
    weights = [[numpy.asarray(p.detach().numpy()) for p in module.parameters()] for module in model]

    def forward(weights: Any, x: Any) -> Any:
        for layer, own in zip(layers, weights, strict=True):
            x = layer(own, x)
        return x

    return forward, weights


def _layer(module: nn.Module) -> Layer:
    numpy = required("jax.numpy", _INSTALL)
    if isinstance(module, nn.Linear):
        return lambda own, x: own[0] @ x + own[1]
    if isinstance(module, nn.Tanh):
        return lambda own, x: numpy.tanh(x)
    if isinstance(module, nn.Flatten):
        return lambda own, x: x.reshape(-1)
    if type(module) is nn.Conv2d:
        return _convolution(module)
    if isinstance(module, nn.MaxPool2d):
        return _max_pool(module)
    raise Unavailable(f"not available for this net: {type(module).__name__} is not written in JAX here")


def _convolution(module: nn.Conv2d) -> Layer:
    jax = required("jax", _INSTALL)
    padding = [(int(side), int(side)) for side in module.padding]

    def layer(own: Any, x: Any) -> Any:
        y = jax.lax.conv_general_dilated(x[None], own[0], module.stride, padding)
        return y[0] + own[1][:, None, None]

    return layer


def _max_pool(module: nn.MaxPool2d) -> Layer:
    jax = required("jax", _INSTALL)
    assert isinstance(module.kernel_size, int)
    assert isinstance(module.stride, int)
    window, strides = (1, module.kernel_size, module.kernel_size), (1, module.stride, module.stride)
    return lambda own, x: jax.lax.reduce_window(x, -float("inf"), jax.lax.max, window, strides, "VALID")


def _compiled(
    jax: Any, forward: Callable[[Any, Any], Any], weights: list[Any], batch: tuple[Tensor, Tensor]
) -> Trainer:
    """A step that is compiled before the first one is taken."""
    inputs, targets = (jax.numpy.asarray(part.numpy()) for part in batch)
    first: Any = (weights, jax.tree.map(jax.numpy.zeros_like, weights), jax.random.key(0))
    step = jax.jit(_private_step(jax, forward, len(targets)), donate_argnums=0).lower(first, inputs, targets).compile()

    def train(orders: Orders) -> Tensor:
        state = first
        while steps := orders.wanted():
            start = time.perf_counter()
            for _ in range(steps):
                state = step(state, inputs, targets)
            jax.block_until_ready(state)
            orders.taken(time.perf_counter() - start)
        return torch.cat([torch.tensor(jax.device_get(leaf)).reshape(-1) for leaf in jax.tree.leaves(state[0])])

    return train


def _private_step(jax: Any, forward: Callable[[Any, Any], Any], batch: int) -> Callable[[Any, Any, Any], Any]:
    numpy = jax.numpy

    def loss(weights: Any, x: Any, label: Any) -> Any:
        return -jax.nn.log_softmax(forward(weights, x))[label]

    def step(state: Any, inputs: Any, targets: Any) -> Any:
        weights, momentum, key = state
        each = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(weights, inputs, targets)
        leaves, tree = jax.tree.flatten(each)
        square = sum(numpy.sum(leaf.reshape(batch, -1) ** 2, axis=1) for leaf in leaves)
        factors = numpy.minimum(1.0, CLIP_NORM / numpy.maximum(numpy.sqrt(square), 1e-12))
        key, *keys = jax.random.split(key, 1 + len(leaves))
        noised = [
            (numpy.tensordot(factors, leaf, 1) + NOISE_MULTIPLIER * CLIP_NORM * jax.random.normal(k, leaf.shape[1:]))
            / batch
            for k, leaf in zip(keys, leaves, strict=True)
        ]
        momentum = jax.tree.map(lambda old, new: MOMENTUM * old + new, momentum, jax.tree.unflatten(tree, noised))
        return jax.tree.map(lambda w, m: w - LEARNING_RATE * m, weights, momentum), momentum, key

    return step
