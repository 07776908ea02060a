"""Are answers right, and what are they cited for? Figures over the lines of a batch."""
