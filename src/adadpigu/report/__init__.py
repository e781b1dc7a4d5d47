"""The report page and figures of a run. Public throughout."""
