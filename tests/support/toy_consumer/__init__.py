"""A consumer that adds up a column: the smallest example of one, in the files that each has."""
