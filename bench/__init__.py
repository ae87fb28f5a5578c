"""Speed, as ratios of one run on one machine: `python -m bench [name ...]`, also `make bench`."""
