"""Run folders: what binds the files of one together."""
