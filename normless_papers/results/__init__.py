"""Results of artefacts: carried out, stored, and rebuilt from a file of runs."""
