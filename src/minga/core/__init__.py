"""What every other room may use: errors, units, events and the run spec."""
