"""Differentially private training whose guarantee is real, fast and accurate."""
