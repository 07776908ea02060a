"""Are answers right, and what do orders of prompts, several servers and warm-ups save?"""
