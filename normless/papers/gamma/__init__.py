"""The artefacts of Guidelines for the Regularization of Gammas (Kim et al.)."""
