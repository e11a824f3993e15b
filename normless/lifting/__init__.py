"""Replace operators in a module's forward code by child modules, so that edits can change them."""
