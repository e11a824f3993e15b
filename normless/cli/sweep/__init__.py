"""``normless sweep …``: sets of runs from YAML files, carried out once, wherever there is room."""
