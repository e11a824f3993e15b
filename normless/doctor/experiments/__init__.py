"""Trial steps on copies with one thing changed: trials, rates, settings, cures, operations left out."""
