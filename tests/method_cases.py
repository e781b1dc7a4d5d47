"""Methods to test: every registered one with its defaults, and with further options worth a test."""

from __future__ import annotations

from adadpigu.methods import own_methods

VARIANTS: dict[str, dict[str, dict[str, object]]] = {
    "adaclip": {"quick to learn": {"mean_decay": 0.5, "variance_decay": 0.5, "clip_norm": 0.7}},
    "adadpigu": {
        "moving statistics": {
            "importance_steps": 2,
            "mean_decay": 0.9,
            "variance_decay": 0.9,
            "offset": 0.01,
            "debias": True,
        },
        "per layer, unfreezing": {
            "importance_steps": 2,
            "retention": 0.4,
            "schedule": "linear",
            "per_layer": True,
            "variance_decay": 0.9,
            "offset": 0.01,
        },
        "from stage 1, pruned": {"importance_steps": 2, "variance_start": "stage-1", "mode": "prune"},
        "top-k": {"importance_steps": 2, "top_k": 0.3},
        "as written": {"importance_steps": 1, "top_k": 0.6, "top_k_of": "all", "mode": "prune"},
        "top-k, C by a quantile": {"importance_steps": 1, "top_k": 0.5, "clip_quantile": 0.5, "count_noise": 3.0},
        "blocks, mask where it pays": {
            **{"importance_steps": 2, "blocks": 5, "restrict": "worthwhile", "debias": True},
            **{"variance_start": "stage-1", "normalise": True},
        },
        "from the noise, public scores": {
            **{"score": "public", "variance_start": "noise", "normalise": True, "debias": True, "noise_floor": 0.1},
        },
    },
    "dpsur": {
        "small tests": {"test_batch_size": 20, "test_clip": 0.01, "test_noise_multiplier": 1.5},
        "nothing is good enough": {"threshold": 100.0},
    },
    "parameter-freezing": {
        "selection": {"every": "step", "retention": 0.3},
        "random": {"select": "random", "retention": 0.3},
        "random, every step": {"select": "random", "every": "step"},
        "public model": {"select": "public-model", "public_model": "A FILE", "retention": 0.2},
    },
    "quantile": {"quick to learn": {"clip_rate": 2.0, "count_noise": 1.0, "quantile": 0.9}},
    "random-freeze": {"constant": {"rise": "constant"}, "cosine": {"rise": "cosine", "rise_by": 0.5}},
}
OWN = list(own_methods())
"""the package's own methods; those that papers/ plugs in meet the same harness in tests/papers/systems"""
CASES: dict[str, tuple[str, dict[str, object]]] = {
    f"{name}: {label}" if label else name: (name, options)
    for name in OWN
    for label, options in {"": {}, **VARIANTS.get(name, {})}.items()
}
"""a method's name and options, by the name of the case"""
