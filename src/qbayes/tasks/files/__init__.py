"""Files of data sets: fetched, checked, unpacked and read."""
