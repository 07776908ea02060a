"""What every benchmark shares: machine, report, progress, options, spreads and accounting."""
