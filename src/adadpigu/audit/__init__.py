"""Tries to break the guarantee; what it looks at is sensitive, so it runs apart from training."""
