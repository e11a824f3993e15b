"""Figures of what `normless.probes` measures; each takes tables and draws on `ax`, or on a new figure."""
