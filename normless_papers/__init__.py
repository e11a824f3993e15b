"""The five papers: every artefact by its id, carried out at a budget; what is published beside what is measured."""
