"""The five papers: every artefact by its id, carried out at a budget, with what is published beside what is measured."""
