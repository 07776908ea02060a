"""In which order are records of several priority classes taken in, and how fast is batch work
admitted?
"""
