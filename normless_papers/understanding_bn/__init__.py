"""The artefacts of Understanding Batch Normalization (Bjorck et al. 2018)."""
