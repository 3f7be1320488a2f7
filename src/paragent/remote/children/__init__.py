"""Server processes of our own: forked from a warm parent, ended with us."""
