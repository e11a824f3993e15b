"""The artefacts of Fixup (Zhang et al. 2019)."""
