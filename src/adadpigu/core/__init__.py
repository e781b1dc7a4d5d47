"""The privacy line: records are sampled, per-record gradients become bounded sums, and noise makes a release of them.

    sampling ─▶ gradients/ ─▶ bounding ─▶ mechanism ─▶ Release

Everything left of the mechanism is sensitive. A `Release` is public; methods and optimisers see nothing else.
"""
