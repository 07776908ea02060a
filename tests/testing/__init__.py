"""What users import in their own tests: the same promises, kept."""
