"""The artefacts of ZeroInit (De & Smith 2019)."""
