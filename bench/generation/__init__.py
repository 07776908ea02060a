"""Is the generator worth its tokens?"""
