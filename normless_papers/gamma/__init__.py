"""Kim et al., Guidelines for the Regularization of Gammas: every artefact."""
