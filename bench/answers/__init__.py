"""Are the answers right, and what do they cost?"""
