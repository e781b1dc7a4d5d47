"""Shows and reads back what a run has left: figures, models. Public throughout."""
