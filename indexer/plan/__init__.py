"""What does a build decide? What it keeps, embeds, balances, and writes in each pass. Pure."""
