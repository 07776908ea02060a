"""How do documents become clusters on disk? Read, embed, cluster, write, verify, measure."""
