"""The artefacts of SkipInit (De & Smith 2020)."""
