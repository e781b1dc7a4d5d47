"""Priors: what a net may know about images before it sees a record, learnt from images of random processes alone.

No photograph and no record has any part in it, so a prior is public and costs nothing, wherever it stands.
"""
